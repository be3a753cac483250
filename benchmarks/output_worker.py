"""Only writes lines, as a worker: `output_worker.py FOLDER BYTES BLOCKS`, run by output.py.

It reports in FOLDER when it is ready and when it has written everything. It starts when the gate
there is opened, and ends when it is closed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

BLOCK_BYTES = 40_000
"""Bytes written at once: many, so that workers cost little, but no divisor of a pipe's size, so
that the output of workers that share a pipe does interleave."""


def lines(rank: int, line_bytes: int) -> list[bytes]:
    """Return a block's lines, each of `line_bytes` bytes and unique among all ranks."""
    fill = bytes([ord("a") + rank % 26]) * (line_bytes - 11)
    count = BLOCK_BYTES // line_bytes
    return [b"%d %07d %b\n" % (rank % 10, number, fill) for number in range(count)]


def write(descriptor: int, data: bytes) -> None:
    """Write all of the data."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def main() -> None:
    folder, line_bytes, blocks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rank = int(os.environ["RANK"])
    block = b"".join(lines(rank, line_bytes))
    (folder / f"ready-{rank}").touch()
    with (folder / "gate").open() as gate:
        for _ in range(blocks):
            write(1, block)
        (folder / f"done-{rank}").touch()
        gate.read()


if __name__ == "__main__":
    main()
