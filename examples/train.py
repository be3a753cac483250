"""Data-parallel training of a small classifier on scikit-learn's handwritten digits.

    torshrun --nproc-per-node 4 examples/train.py

Each step every rank computes the gradient of its share of one global batch, and
DistributedDataParallel averages them, so the result does not depend on the number of workers.
Rank 0 writes a checkpoint after each epoch; a restarted job goes on from the last one, and a job
that is done removes it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import torsh_runtime as tr
from torsh_runtime import nn, optim
from torsh_runtime.nn import functional as F  # noqa: N812

Samples = tuple[np.ndarray, np.ndarray]
HIDDEN, CLASSES, PIXELS = 128, 10, 64


def main() -> None:
    options = parse_arguments()
    tr.init_process_group(timeout=options.timeout)
    train_set, test_set = load_data()
    nn.manual_seed(0)
    layers = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    model = tr.DistributedDataParallel(layers, gradient_compression=options.compression)
    optimizer = optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    epoch = resume(options.checkpoint, model, optimizer)
    while epoch < options.epochs:
        loss = train_epoch(model, optimizer, train_set, epoch, options.batch)
        epoch += 1
        if tr.get_rank() == 0:
            save(options.checkpoint, model, optimizer, epoch)
            report(epoch, loss, layers, test_set, options.epochs)
    if tr.get_rank() == 0:
        options.checkpoint.unlink(missing_ok=True)
    tr.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--epochs", type=int, default=40)
    add("--batch", type=int, default=64, help="samples of all ranks together")
    add("--lr", type=float, default=0.1)
    add("--momentum", type=float, default=0.9)
    add("--compression", metavar="NAME", help="of gradients between ranks, such as powersgd:4")
    add("--timeout", type=float, default=60.0, help="seconds for a collective")
    add("--checkpoint", type=Path, default=Path("checkpoints/digits.npz"))
    return parser.parse_args()


def load_data() -> tuple[Samples, Samples]:
    """Training and test set; every fifth digit is held out."""
    images, digits = load_digits(return_X_y=True)
    inputs = (images / 16).astype(np.float32)
    held_out = np.arange(len(inputs)) % 5 == 0
    return (inputs[~held_out], digits[~held_out]), (inputs[held_out], digits[held_out])


def train_epoch(model: Any, optimizer: Any, train_set: Samples, epoch: int, size: int) -> float:
    """One pass over the training set in an order that depends on the epoch only. Mean loss."""
    inputs, targets = train_set
    order = np.random.default_rng(epoch).permutation(len(inputs))
    rank, ranks = tr.get_rank(), tr.get_world_size()
    total = 0.0
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        mine = batch[rank::ranks]
        scores = model(nn.from_numpy(inputs[mine]))
        loss = F.cross_entropy(scores, nn.from_numpy(targets[mine]), reduction="sum")
        optimizer.zero_grad()
        (loss * (ranks / len(batch))).backward()  # gradients are divided by the number of ranks
        optimizer.step()
        total += loss.item()
    return float(tr.average_gradients(total)) * ranks / len(order)


def resume(path: Path, model: Any, optimizer: Any) -> int:
    """Load the last checkpoint, if any, on rank 0 and give it to all; the epoch to go on with."""
    saved: list[Any] = [None]
    if tr.get_rank() == 0 and path.exists():
        with np.load(path) as file:
            saved = [dict(file)]
        print(f"resuming from {path} after epoch {saved[0]['epoch']}", flush=True)
    tr.broadcast_object_list(saved, src=0)
    if saved[0] is None:
        return 0
    epoch = int(saved[0].pop("epoch"))
    state = optimizer.state_dict()
    for name in [name for name in saved[0] if name.startswith("momentum.")]:
        number = int(name.partition(".")[2])
        state["state"][number] = {"momentum_buffer": saved[0].pop(name)}
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(state)
    return epoch


def save(path: Path, model: Any, optimizer: Any, epoch: int) -> None:
    """Write a checkpoint so that at any moment the old or the new one is there, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    momentum = {
        f"momentum.{number}": state["momentum_buffer"]
        for number, state in optimizer.state_dict()["state"].items()
    }
    with partial.open("wb") as file:
        np.savez(file, epoch=epoch, **momentum, **model.state_dict())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def report(epoch: int, loss: float, layers: Any, test_set: Samples, epochs: int) -> None:
    if epoch % 5 != 0 and epoch != epochs:
        return
    with nn.no_grad():
        scores = layers(nn.from_numpy(test_set[0]))
    accuracy = (scores.numpy().argmax(axis=1) == test_set[1]).mean()
    print(f"epoch {epoch:3}  loss {loss:.4f}  test accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
