"""Data-parallel training of a small classifier on scikit-learn's handwritten digits.

    torshrun --nproc-per-node 4 examples/train.py

Each step every rank computes the gradient of its share of one global batch and the shares are
summed, so the result does not depend on the number of workers. Rank 0 writes a checkpoint after
each epoch; a restarted job goes on from the last one, and a job that is done removes it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import torsh_runtime as tr

Array = NDArray[np.float32]
HIDDEN, CLASSES, PIXELS = 128, 10, 64
SHAPES = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
SIZES = [int(np.prod(shape)) for shape in SHAPES]


def main() -> None:
    options = parse_arguments()
    tr.init_process_group(timeout=options.timeout)
    train_set, test_set = load_data()
    weights = initial_weights()
    velocity = np.zeros_like(weights)
    epoch = resume(options.checkpoint, weights, velocity)
    while epoch < options.epochs:
        loss = train_epoch(weights, velocity, train_set, epoch, options)
        epoch += 1
        if tr.get_rank() == 0:
            save(options.checkpoint, weights, velocity, epoch)
            report(epoch, loss, weights, test_set, options.epochs)
    if tr.get_rank() == 0:
        options.checkpoint.unlink(missing_ok=True)
    tr.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64, help="samples of all ranks together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for a collective")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/digits.npz"))
    return parser.parse_args()


def load_data() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Training and test set; every fifth digit is held out."""
    images, digits = load_digits(return_X_y=True)
    inputs = (images / 16).astype(np.float32)
    targets = np.eye(CLASSES, dtype=np.float32)[digits]
    held_out = np.arange(len(inputs)) % 5 == 0
    return (inputs[~held_out], targets[~held_out]), (inputs[held_out], targets[held_out])


def initial_weights() -> Array:
    """One flat vector of all parameters, the same on every rank."""
    generator = np.random.default_rng(0)
    scales = [np.sqrt(2 / PIXELS), 0, np.sqrt(1 / HIDDEN), 0]
    parts = [generator.normal(0, 1, n) * s for n, s in zip(SIZES, scales, strict=True)]
    return np.concatenate(parts).astype(np.float32)


def views(flat: Array) -> list[Array]:
    """The parameters as matrices and vectors that share the flat vector's memory."""
    parts = np.split(flat, np.cumsum(SIZES)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def train_epoch(
    weights: Array,
    velocity: Array,
    train_set: tuple[Array, Array],
    epoch: int,
    options: argparse.Namespace,
) -> float:
    """One pass over the training set in an order that depends on the epoch only. Mean loss."""
    inputs, targets = train_set
    order = np.random.default_rng(epoch).permutation(len(inputs))
    rank, world_size = tr.get_rank(), tr.get_world_size()
    total = 0.0
    for start in range(0, len(order), options.batch):
        batch = order[start : start + options.batch]
        mine = batch[rank::world_size]
        gradient = np.zeros(len(weights) + 1, np.float32)  # the last element is the loss
        gradient[-1] = loss_and_gradient(weights, inputs[mine], targets[mine], gradient[:-1])
        tr.all_reduce(gradient)
        velocity *= options.momentum
        velocity += gradient[:-1] / len(batch)
        weights -= options.lr * velocity
        total += float(gradient[-1])
    return total / len(order)


def loss_and_gradient(weights: Array, inputs: Array, targets: Array, gradient: Array) -> float:
    """Summed cross-entropy of the samples; its gradient is written into `gradient`."""
    w1, b1, w2, b2 = views(weights)
    dw1, db1, dw2, db2 = views(gradient)
    hidden, probabilities = predict(inputs, w1, b1, w2, b2)
    error = probabilities - targets
    dw2[...] = hidden.T @ error
    db2[...] = error.sum(axis=0)
    below = (error @ w2.T) * (hidden > 0)
    dw1[...] = inputs.T @ below
    db1[...] = below.sum(axis=0)
    return float(-np.log((probabilities * targets).sum(axis=1) + 1e-12).sum())


def predict(inputs: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> tuple[Array, Array]:
    """The hidden layer (ReLU) and the classes' probabilities (softmax)."""
    hidden = np.maximum(inputs @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, exponentials / exponentials.sum(axis=1, keepdims=True)


def resume(path: Path, weights: Array, velocity: Array) -> int:
    """Load the last checkpoint, if any, on rank 0 and give it to all; the epoch to go on with."""
    epoch = np.zeros(1, np.int64)
    if tr.get_rank() == 0 and path.exists():
        with np.load(path) as saved:
            weights[...], velocity[...], epoch[0] = (
                saved["weights"],
                saved["velocity"],
                saved["epoch"],
            )
        print(f"resuming from {path} after epoch {epoch[0]}", flush=True)
    for array in (weights, velocity, epoch):
        tr.broadcast(array, src=0)
    return int(epoch[0])


def save(path: Path, weights: Array, velocity: Array, epoch: int) -> None:
    """Write a checkpoint so that at any moment the old or the new one is there, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, weights=weights, velocity=velocity, epoch=epoch)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def report(
    epoch: int, loss: float, weights: Array, test_set: tuple[Array, Array], epochs: int
) -> None:
    if epoch % 5 != 0 and epoch != epochs:
        return
    _, probabilities = predict(test_set[0], *views(weights))
    accuracy = (probabilities.argmax(axis=1) == test_set[1].argmax(axis=1)).mean()
    print(f"epoch {epoch:3}  loss {loss:.4f}  test accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
