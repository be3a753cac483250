"""Measures resuming from commits in memory.

`torshrun --nproc-per-node 2 --max-restarts 3 benchmarks/elastic_resume.py`: the state consists of
arrays of which each rank has its part. In the first three starts rank 1 kills itself after its
commits. The next workers print how long restore() took, compared with copying as much in memory,
and how many committed steps were lost. The last ones print how long a commit takes. With --bars
they end with 1 if the last restore took longer than a second or lost a step.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time

import numpy as np

import torsh_runtime as tr
from torsh_runtime.layout import Piece, ShardedTensor

_PARTS, _STEPS, _DEATHS = 50, 5, 3


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=500, help="of all ranks; default: 500")
    parser.add_argument("--quick", action="store_true", help="8 MB")
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is missed")
    return parser.parse_args()


def main() -> int:
    options = parse()
    size = (8 if options.quick else options.megabytes) * 1_000_000 // 4 // _PARTS
    tr.init_process_group()
    rank, ranks = tr.get_rank(), tr.get_world_size()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    piece = Piece((size,), (0,), (size,), size * rank // ranks, size * (rank + 1) // ranks)
    parts = {
        f"part_{n}": ShardedTensor(np.ones(piece.size, np.float32), piece) for n in range(_PARTS)
    }
    state = tr.elastic.State(step=0, **parts)
    tr.barrier()
    start = time.perf_counter()
    state.restore()
    restored = worst(time.perf_counter() - start)
    lost = restarts * _STEPS - state.step
    copied = statistics.median(copy(parts) for _ in range(3))
    if rank == 0 and restarts:
        ratio = restored / copied
        print(f"restored in {restored:.2f} s, {ratio:.1f} times a memcpy; {lost} steps are lost")
    taken = []
    for _ in range(_STEPS):
        state.step += 1
        tr.barrier()
        start = time.perf_counter()
        state.commit()
        taken.append(worst(time.perf_counter() - start))
    if restarts < _DEATHS:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        tr.barrier()
    if rank == 0:
        commit = statistics.median(taken)
        print(f"a commit takes {commit * 1e3:.0f} ms, {commit / copied:.1f} times a memcpy")
    tr.destroy_process_group()
    return int(options.bars and (restored > 1.0 or lost > 0))


def copy(parts: dict[str, ShardedTensor]) -> float:
    """Return the slowest rank's seconds for a copy into existing memory."""
    target = [np.ones_like(each.values) for each in parts.values()]
    tr.barrier()
    start = time.perf_counter()
    for array, each in zip(target, parts.values(), strict=True):
        np.copyto(array, each.values)
    return worst(time.perf_counter() - start)


def worst(seconds: float) -> float:
    """Return the slowest rank's seconds."""
    told = np.array([seconds])
    tr.all_reduce(told, tr.ReduceOp.MAX)
    return float(told[0])


if __name__ == "__main__":
    sys.exit(main())
