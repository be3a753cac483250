"""Measures how fast the reduction kernels are.

    python benchmarks/kernels.py --help

Each kernel reduces buffers in the processor's own cache, on one thread, and is compared with one
memcpy of such a buffer. A compiler that does not vectorise a kernel makes it many times slower.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

if not __package__:  # torsh_runtime is the installed one, not the source tree beside this folder
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import bars, session
from benchmarks.bars import Check
from benchmarks.table import render
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.enumerations import DTYPES, REDUCTIONS

OPERATIONS = ("SUM", "AVG", "MAX", "PRODUCT")
HELD = ("SUM", "MAX")
"""Reductions that have a bar, for dtypes that are not complex."""
MOST_MEMCPYS = 4.0
_LIMITED = frozenset(name for name in DTYPES if not name.startswith("complex"))
_NO_DIVISOR = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """Holds the figures of one kernel on buffers of one size."""

    dtype: str
    operation: str
    sources: int
    nbytes: int
    """Bytes of each buffer."""
    us: float
    memcpys: float
    """Time as a multiple of a memcpy of such a buffer, measured in the same rounds."""

    @property
    def gbs(self) -> float:
        """Return the rate of reading in GB/s (10^9 bytes)."""
        return self.sources * self.nbytes / self.us / 1e3


def fastest_us(call: Callable[[], object], seconds: float) -> float:
    """Return the microseconds of one call: the lower quartile over short runs of calls."""
    count = max(1, int(1e-4 / max(_run(call, 3), 1e-9)))
    deadline = time.perf_counter() + seconds
    runs: list[float] = []
    while len(runs) < 4 or time.perf_counter() < deadline:
        runs.append(_run(call, count))
    return statistics.quantiles(runs, n=4)[0] * 1e6


def _run(call: Callable[[], object], count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begun) / count


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """Measure every requested kernel that is defined."""
    nbytes = options.kib * 1024
    sources = [np.zeros(nbytes, np.uint8) for _ in range(options.sources)]
    target = np.zeros(nbytes, np.uint8)
    for dtype, operation in product(options.dtype, options.op):
        kind, op = DTYPES.index(dtype), REDUCTIONS.index(operation)
        if not _native.is_reducible(kind, op):
            continue
        divisor = len(sources) if operation == "AVG" else _NO_DIVISOR
        arguments = ([target], sources, kind, op, divisor, 1.0)
        us = fastest_us(partial(_native.reduce, *arguments), options.seconds)
        copy = fastest_us(partial(np.copyto, target, sources[0]), options.seconds / 4)
        yield Figure(dtype, operation, len(sources), nbytes, us, us / copy)


def checks(figures: Sequence[Figure]) -> list[Check]:
    """Return a check of every kernel that has a bar."""
    return [
        Check(
            f"{figure.dtype} {figure.operation}: times of a memcpy",
            figure.memcpys,
            MOST_MEMCPYS * figure.sources / 2,
            at_most=True,
            bar="kernels",
        )
        for figure in figures
        if figure.operation in HELD and figure.dtype in _LIMITED
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--dtype", type=_dtypes, default=DTYPES, help="such as float32,bfloat16; default: all")
    add("--op", type=_operations, default=OPERATIONS, help=f"default: {','.join(OPERATIONS)}")
    add("--kib", type=session.positive, default=128, help="of each buffer; default: 128")
    add("--sources", type=session.positive, default=2, help="default: 2")
    add("--seconds", type=float, default=0.2, help="for each kernel; default: 0.2")
    add("--json", type=Path, metavar="FILE", help="write the figures and the machine's description")
    add("--quick", action="store_true", help="little time for each: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seconds = 0.004
    return options


def _dtypes(text: str) -> tuple[str, ...]:
    return session.several(text, DTYPES)


def _operations(text: str) -> tuple[str, ...]:
    return session.several(text, REDUCTIONS)


def report(figures: Sequence[Figure]) -> str:
    """Return a table with one line for each kernel."""
    body = [
        [f.dtype, f.operation, f"{f.us:.2f}", f"{f.gbs:.1f}", f"{f.memcpys:.2f}"] for f in figures
    ]
    return render(["dtype", "reduction", "us", "GB/s", "memcpys"], body)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    figures, interrupted = [], False
    try:
        for figure in measure(options):
            figures.append(figure)
    except KeyboardInterrupt:
        interrupted = True
    print(f"{options.sources} buffers of {options.kib} KiB into another; GB/s of what is read")
    print(report(figures))
    record = {"figures": [asdict(figure) for figure in figures]}
    return bars.conclude(options, checks(figures), record, interrupted)


if __name__ == "__main__":
    raise SystemExit(main())
