"""Measures what torsh's nccl backend adds to NCCL, compared with torch's. Run it under torshrun.

    torshrun --nproc-per-node 2 benchmarks/nccl.py

all_reduces of float32 tensors on GPUs are done by both, in turns, in the same processes. The times
are how long a call with async_op keeps the processor, and how long it takes until the result is
available. Ratios are of medians. Ranks that share one GPU claim to be different hosts, so that NCCL
accepts them. They communicate through sockets then, which shows nothing about NCCL's speed, but
still what torsh adds. Needs torch with CUDA, nccl4py and cupy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check
from benchmarks.sizes import format_size
from benchmarks.table import microseconds, ratio, render

SIZES = (4096, 1 << 20, 64 << 20)
_BAR = 1.1
_WAIT = 60.0
Begin = Callable[[Any], Any]


def call_times(begin: Begin, array: Any, sync: Callable[[], None], count: int) -> list[float]:
    """Return the seconds that calls keep the processor. No call waits for another one."""
    sync()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        work = begin(array)
        times.append(time.perf_counter() - start)
        work.wait()
        sync()
    return times


def whole_times(begin: Begin, array: Any, sync: Callable[[], None], count: int) -> list[float]:
    """Return the seconds until results are available."""
    times = []
    for _ in range(count):
        sync()
        start = time.perf_counter()
        begin(array).wait()
        sync()
        times.append(time.perf_counter() - start)
    return times


def measured(gpu: int, rounds: int, count: int) -> dict[tuple[str, int, str], float]:
    """Return medians in seconds, by kind of time, size and library."""
    import torch
    import torch.distributed as dist

    import torsh_runtime as tr

    torch.cuda.set_device(gpu)
    tr.init_process_group("nccl", timeout=_WAIT)
    dist.init_process_group("nccl", device_id=torch.device("cuda", gpu))
    calls: dict[str, Begin] = {
        "ours": lambda array: tr.all_reduce(array, async_op=True),
        "torch": lambda array: dist.all_reduce(array, async_op=True),
    }
    found: dict[tuple[str, int, str], list[float]] = {}
    for size in SIZES:
        array = torch.zeros(size // 4, device=f"cuda:{gpu}")
        for turn in range(rounds + 1):
            for whose, begin in calls.items():
                for what, measure in (("call", call_times), ("whole", whole_times)):
                    times = measure(begin, array, torch.cuda.synchronize, count)
                    if turn:  # the first turn makes connections
                        found.setdefault((what, size, whose), []).extend(times)
    rank = tr.get_rank()
    dist.destroy_process_group()
    tr.destroy_process_group()
    medians = {key: statistics.median(times) for key, times in found.items()}
    return medians if rank == 0 else {}


def main() -> int:
    """Run the benchmark, and return the exit status: 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--bars", action="store_true", help="print pass or fail, and exit with 1")
    parser.add_argument("--quick", action="store_true", help="see whether it works")
    given = parser.parse_args()
    from torshrun.topology.gpus import visible

    gpus = len(visible(os.environ))
    if not gpus or "RANK" not in os.environ:
        parser.error("it is a script for torshrun, on a machine with an NVIDIA GPU")
    rank = int(os.environ["RANK"])
    if int(os.environ["LOCAL_WORLD_SIZE"]) > gpus:
        os.environ |= {"NCCL_HOSTID": f"host of rank {rank}", "NCCL_SOCKET_IFNAME": "lo"}
    found = measured(int(os.environ["LOCAL_RANK"]) % gpus, given.rounds, 5 if given.quick else 50)
    if rank:
        return 0
    rows, checks = [], []
    for what, size in dict.fromkeys((what, size) for what, size, _ in found):
        ours, theirs = found[what, size, "ours"], found[what, size, "torch"]
        times = [microseconds(seconds * 1e6) for seconds in (ours, theirs)]
        rows.append([what, format_size(size), *times, ratio(ours / theirs)])
        if what == "whole":
            bar = f"all_reduce of {format_size(size)} to torch's"
            checks.append(Check(bar, ours / theirs, _BAR, at_most=True))
    print(render(["what", "bytes", "ours us", "torch us", "ratio"], rows))
    if given.bars:
        for check in checks:
            print(check)
    return int(given.bars and not all(check.passed for check in checks))


if __name__ == "__main__":
    sys.exit(main())
