"""Trains a small classifier on handwritten digits with torch's DistributedDataParallel.

    torshrun --nproc-per-node 2 --max-restarts 3 examples/torch_ddp.py --epochs 20

The script knows nothing of torshrun: it would run under torchrun as well. After a restart it goes
on from its last checkpoint. Needs torch and scikit-learn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HELD_OUT = 360


def load() -> tuple[TensorDataset, TensorDataset]:
    """1,437 images to learn from and 360 to test on."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    return (
        TensorDataset(images[:-HELD_OUT], labels[:-HELD_OUT]),
        TensorDataset(images[-HELD_OUT:], labels[-HELD_OUT:]),
    )


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: DataLoader
) -> torch.Tensor:
    """One pass over this rank's share; the mean loss of all ranks."""
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    images, labels = test.tensors
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def save(path: Path, state: dict[str, object]) -> None:
    """Whole or not at all, should this process be killed meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(path)


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    train_set, test_set = load()
    sampler = DistributedSampler(train_set)
    batches = DataLoader(train_set, options.batch, sampler=sampler)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    done = 0
    if options.checkpoint.exists():
        state = torch.load(options.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epochs"]
        if dist.get_rank() == 0:
            print(f"resuming after epoch {done}")
    for epoch in range(done + 1, options.epochs + 1):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, batches)
        if dist.get_rank() == 0:
            print(f"epoch {epoch:3}  loss {loss:.4f}  accuracy {accuracy(model, test_set):.2%}")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(options.checkpoint, {**state, "epochs": epoch})


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on handwritten digits with torch's DDP.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/torch-digits.pt"))
    return parser.parse_args()


@record
def main() -> None:
    """Train within a process group that the environment describes."""
    dist.init_process_group("gloo")
    try:
        train(parse_options())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
