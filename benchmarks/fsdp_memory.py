"""Measures the memory of sharded training.

    torshrun --nproc-per-node 4 benchmarks/fsdp_memory.py --bars

The model has ten Linear layers with 200 million parameters, and uses Adam. Each rank's PSS is
sampled while it trains, less its value before the model was made. (RSS counts pages that ranks
share once for each of them.) It is compared with the size by the layout: this rank's part of
parameters, gradients and optimizer state, and two units. memory_stats() plus the optimizer's state
is compared with the largest sample.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

import torch
from torch import nn

import torsh_runtime as tr

_PERIOD = 0.01
_MIB = 1 << 20


class Samples:
    """Records the largest PSS of this process in a block."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Samples:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_PERIOD):
            self.peak = max(self.peak, pss())


def pss() -> int:
    """Return this process's PSS in bytes, which counts its share of shared pages."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError("the kernel tells no PSS")


def have_libraries_loaded(data: torch.Tensor) -> None:
    """Allocate what libraries need once: making an optimizer loads 71 MiB of torch's compiler."""
    small = nn.Linear(data.shape[1], 4)
    optimizer = torch.optim.Adam(small.parameters(), fused=True)
    small(data).sum().backward()
    optimizer.step()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--width", type=int, default=4472, help="of a layer; default: 4472")
    parser.add_argument("--steps", type=int, default=3, help="default: 3")
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is missed")
    return parser.parse_args()


def main() -> int:
    options = parse()
    torch.set_num_threads(1)
    tr.init_process_group()
    data = torch.randn(4, options.width)
    have_libraries_loaded(data)
    tr.barrier()
    before = pss()
    model = tr.FullyShardedDataParallel(
        nn.Sequential(*(nn.Linear(options.width, options.width) for _ in range(10)))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    tr.barrier()
    with Samples() as samples:
        for _ in range(options.steps):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
    stats = model.memory_stats()
    state = sum(
        each.nbytes
        for values in optimizer.state.values()
        for each in values.values()
        if isinstance(each, torch.Tensor)
    )
    whole = stats.parameters + stats.saved
    unit = 4 * options.width * (options.width + 1)
    bound = 4 * whole // tr.get_world_size() + 2 * unit  # parameters, gradients and two moments
    taken, told = samples.peak - before, stats.peak + state
    print(
        f"rank {tr.get_rank()}: PSS {taken / _MIB:.0f} MiB at most, bound {bound / _MIB:.0f}, "
        f"ratio {taken / bound:.2f}; memory_stats and optimizer {told / _MIB:.0f} MiB, "
        f"ratio {told / taken:.2f}",
        flush=True,
    )
    is_missed = taken > bound or not 0.9 <= told / taken <= 1.1
    tr.destroy_process_group()
    return int(options.bars and is_missed)


if __name__ == "__main__":
    sys.exit(main())
