"""Compares steps of Muon on a sharded model with steps of AdamW.

    torshrun --nproc-per-node 2 benchmarks/muon.py --bars

The model has eight Linear layers. Each matrix belongs to one rank, which alone computes its
Newton-Schulz iterations ("bare", timed by itself). A step of Muon should take as long as one of
AdamW and these iterations together. "ddp" is Muon on replicas, where each rank computes all
matrices. All four are timed in turn, in each round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

import torsh_runtime as tr

_DEPTH = 8
_BAR = 1.10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--width", type=int, default=1024, help="of a layer; default: 1024")
    parser.add_argument("--rows", type=int, default=512, help="of a rank's batch; default: 512")
    parser.add_argument("--rounds", type=int, default=11, help="default: 11")
    parser.add_argument("--bars", action="store_true", help="end with 1 if the bar is missed")
    return parser.parse_args()


def model(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(_DEPTH)))


def step(wrapped: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> None:
    optimizer.zero_grad()
    wrapped(data).square().mean().backward()
    optimizer.step()


def iterations(wrapped: nn.Module) -> None:
    """Step a copy of Muon on this rank's matrices, which have gradients."""
    own = [each.detach().clone() for each in wrapped.parameters() if each.numel()]
    for each in own:
        each.grad = torch.ones_like(each)
    torch.optim.Muon(own, lr=0.0).step()


def contenders(options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    data = torch.randn(options.rows, options.width)
    found: dict[str, Callable[[], None]] = {}
    sharded = {}
    for name in ("adamw", "muon"):
        wrapped = tr.FullyShardedDataParallel(model(options.width))
        kind = torch.optim.AdamW if name == "adamw" else torch.optim.Muon
        optimizer = kind(wrapped.parameters(), lr=1e-3)
        sharded[name] = wrapped
        found[name] = lambda m=wrapped, o=optimizer: step(m, o, data)
    found["bare"] = lambda: iterations(sharded["muon"])
    replicas = tr.DistributedDataParallel(model(options.width))
    optimizer = torch.optim.Muon(replicas.parameters(), lr=1e-3)
    found["ddp"] = lambda: step(replicas, optimizer, data)
    return found


def timed(call: Callable[[], None]) -> float:
    tr.barrier()
    start = time.perf_counter()
    call()
    tr.barrier()
    return time.perf_counter() - start


def main() -> int:
    options = parse()
    torch.set_num_threads(1)
    tr.init_process_group()
    calls = contenders(options)
    for call in calls.values():
        call()
    rounds = [{name: timed(call) for name, call in calls.items()} for _ in range(options.rounds)]
    ratios = [each["muon"] / (each["adamw"] + each["bare"]) for each in rounds]
    if tr.get_rank() == 0:
        for name in calls:
            print(f"{name:6} {statistics.median(each[name] for each in rounds) * 1e3:8.1f} ms")
        print(f"muon / ddp {statistics.median(e['muon'] / e['ddp'] for e in rounds):.2f}")
        found = statistics.median(ratios)
        verdict = "pass" if found <= _BAR else "FAIL"
        print(f"muon / (adamw + bare) {found:.3f} <= {_BAR}: {verdict}")
    code = int(options.bars and statistics.median(ratios) > _BAR)
    tr.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
