"""What the memory that a node's ranks share really takes: `python -m support.segment_memory 64`.

Prints MiB after a group of so many processes was made, and after each rank has sent each other one
message of so many bytes (the second argument, 8 unless said otherwise).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from support.worlds import run_processes

import torsh_runtime as tr


def _present() -> float:
    """MiB of the segment, which all of its ranks have mapped: blocks of the file itself."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:torsh-segment" in line:
            return (
                Path(f"/proc/self/map_files/{line.split()[0]}").stat().st_blocks * 512 / (1 << 20)
            )
    raise RuntimeError("this rank has no segment")


def _measure(rank: int, ranks: int, num_bytes: int) -> tuple[float, float]:
    tr.barrier()
    made = _present()
    tr.barrier()
    works = []
    for peer in set(range(ranks)) - {rank}:
        works.append(tr.irecv(np.empty(num_bytes, np.uint8), peer))
        works.append(tr.isend(np.zeros(num_bytes, np.uint8), peer))
    for work in works:
        work.wait()
    tr.barrier()
    return made, _present()


def segment_memory(ranks: int, num_bytes: int) -> tuple[float, float]:
    """MiB at creation, and after all pairs have exchanged messages of so many bytes."""
    results = run_processes(ranks, lambda rank: _measure(rank, ranks, num_bytes), timeout=300)
    result: tuple[float, float] = results[0]
    return result


if __name__ == "__main__":
    before, after = segment_memory(int(sys.argv[1]), int((sys.argv[2:] or [8])[0]))
    print(f"{before:.1f} MiB, then {after:.1f} MiB")
