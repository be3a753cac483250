"""Measures saving a training's state beside memcpy and dd.

    torshrun --nproc-per-node 4 benchmarks/checkpoint.py --bars

Each rank has its part of the state in arrays. The time for which an asynchronous save blocks the
step is compared with that of copying the rank's part in memory, both warm. The bytes per second
that a save writes, all ranks together, are compared with those of `dd`, which writes zeros to the
same directory with one fsync at its end. Rounds alternate between the two; medians count. The
figures are the slowest rank's.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.layout import Piece, ShardedTensor

_PARTS = 50
"""Number of arrays in the state."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=1000, help="of all ranks; default: 1000")
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    parser.add_argument(
        "--directory", help="on the disk in question; default: the system's for tmp"
    )
    parser.add_argument("--quick", action="store_true", help="one round of 8 MB")
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is missed")
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.rounds = 8, 1
    return options


def state_of(size: int) -> dict[str, ShardedTensor]:
    """Return float32 arrays of `size` elements together, of which this rank has its part."""
    rank, ranks = tr.get_rank(), tr.get_world_size()
    whole = size // _PARTS
    piece = Piece((whole,), (0,), (whole,), whole * rank // ranks, whole * (rank + 1) // ranks)
    generator = np.random.default_rng(rank)
    return {
        f"part-{number}": ShardedTensor(generator.random(piece.size, np.float32), piece)
        for number in range(_PARTS)
    }


def worst(seconds: float) -> float:
    """Return the slowest rank's seconds."""
    told = np.array([seconds])
    tr.all_reduce(told, tr.ReduceOp.MAX)
    return float(told[0])


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call on the slowest rank, with all ranks starting together."""
    tr.barrier()
    start = time.perf_counter()
    call()
    return worst(time.perf_counter() - start)


def run_dd(directory: Path, megabytes: int) -> float:
    """Return the seconds that dd takes on rank 0, while the others sleep."""
    seconds = np.zeros(1)
    if tr.get_rank() == 0:
        file = directory / "dd"
        source, size = "if=/dev/zero", f"count={megabytes * 1_000_000 >> 20}"
        command = ["dd", source, f"of={file}", "bs=1M", size, "conv=fsync", "status=none"]
        start = time.perf_counter()
        subprocess.run(command, check=True)
        seconds[0] = time.perf_counter() - start
        file.unlink()
    tr.broadcast(seconds, 0)
    return float(seconds[0])


def main() -> int:
    options = parse()
    tr.init_process_group()
    with tempfile.TemporaryDirectory(dir=options.directory) as own:
        names = [own]
        tr.broadcast_object_list(names, 0)
        failed = measure(options, Path(names[0]))
        tr.barrier()
    tr.destroy_process_group()
    return 1 if failed and options.bars else 0


def measure(options: argparse.Namespace, directory: Path) -> bool:
    state = state_of(options.megabytes * 1_000_000 // 4)
    copies = {name: np.empty_like(tensor.values) for name, tensor in state.items()}

    def copy() -> None:
        for name, tensor in state.items():
            np.copyto(copies[name], tensor.values)

    checkpointer = Checkpointer(directory / "saved", keep_last=1)
    blocked, copied, written, by_dd = [], [], [], []
    for step in range(options.rounds + 1):
        copied.append(timed(copy))
        blocked.append(timed(partial(checkpointer.save, step, state, async_op=True)))
        checkpointer.wait()
        written.append(timed(partial(checkpointer.save, step, state)))
        by_dd.append(run_dd(directory, options.megabytes))
    times = [statistics.median(each[1:]) for each in (blocked, copied, written, by_dd)]
    if tr.get_rank() == 0:
        show(options.megabytes, *times)
        print(f"blocked in the first save: {blocked[0] * 1e3:.0f} ms")
    return times[0] > 1.3 * times[1] or times[2] > times[3] / 0.7


def show(megabytes: int, blocked: float, copied: float, written: float, by_dd: float) -> None:
    print(f"state of {megabytes} MB over {tr.get_world_size()} ranks")
    print(f"blocked {blocked * 1e3:.0f} ms, memcpy {copied * 1e3:.0f} ms: {blocked / copied:.2f}")
    print(
        f"a whole save {megabytes / written:.0f} MB/s, dd {megabytes / by_dd:.0f} MB/s: "
        f"{by_dd / written:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
