"""A worker that only writes lines: `output_worker.py FOLDER BYTES BLOCKS`, run by output.py.

It says in FOLDER when it is ready and when it has written everything, and begins and ends with the
gate there: opened, closed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

BLOCK_BYTES = 40_000
"""Written at once: much, so that workers cost little, and no divisor of what a pipe holds, so that
workers who share one do meet in it."""


def lines(rank: int, line_bytes: int) -> list[bytes]:
    """A block's lines, each of `line_bytes` bytes and unlike all others of all ranks."""
    fill = bytes([ord("a") + rank % 26]) * (line_bytes - 11)
    count = BLOCK_BYTES // line_bytes
    return [b"%d %07d %b\n" % (rank % 10, number, fill) for number in range(count)]


def write(descriptor: int, data: bytes) -> None:
    """Write all of it."""
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
