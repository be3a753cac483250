"""Measures the time that gradient compression takes and the bytes that it saves.

    python benchmarks/compression.py --help

The input is one bucket of about 25 MB, the gradients of a GPT block. The time is that of one rank's
codec alone, without waiting. The bytes are those of each of several ranks, which run as threads.
"""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

if not __package__:  # torsh_runtime is the installed one, not the source tree beside this folder
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import bars, session, timing
from benchmarks.bars import Check
from benchmarks.table import render
from torsh_runtime.backends.native.backend import NativeBackend
from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.compression import FlatBucket, Stats, from_name
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore

MOST = {
    "topk:0.01": 0.05,
    "topk:0.001": 0.005,
    "randomk:0.01": 0.011,
    "threshold:4": 1.0,
    "onebit": 0.05,
    "int8": 0.27,
    "fp16": 0.501,
    "bf16": 0.501,
    "powersgd:4": 0.10,
}
"""Largest share of a dense float32 all_reduce's bytes between 2 ranks, by compressor."""
WIDTH, QUICK_WIDTH = 720, 96
_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Figure:
    """Holds the figures of one compressor on one bucket."""

    compressor: str
    ms: float
    """Median milliseconds of one rank's codec."""
    sent: int
    """Bytes that one rank sends in one step."""
    dense: int

    def speedup(self, mbit: float) -> float:
        """Return how many times sooner a bucket is averaged over links of `mbit` Mbit/s.

        Only the bytes and the codec are assumed to take time.
        """
        per_ms = mbit * 125
        return (self.dense / per_ms) / (self.ms + self.sent / per_ms)


def shapes(width: int) -> list[tuple[int, ...]]:
    """Return the shapes of a GPT block's parameters."""
    matrices = [(width, 3), (width, 1), (width, 4), (4 * width, 1)]
    block: list[tuple[int, ...]] = [(width,)] * 4
    for rows, columns in matrices:
        block += [(rows, columns * width), (columns * width,)]
    return block


class Step:
    """Runs one rank's steps, each on a bucket of the same gradients."""

    def __init__(self, name: str, group: ProcessGroup, width: int) -> None:
        self.compressor = from_name(name)
        self._group = group
        block = shapes(width)
        size = sum(map(math.prod, block))
        self._gradients = np.random.default_rng(group.rank).standard_normal(size, np.float32)
        names = [str(number) for number in range(len(block))]
        self._bucket = FlatBucket(np.empty(size, np.float32), block, names)

    def __call__(self) -> None:
        np.copyto(self._bucket.array, self._gradients)
        self.compressor(self._group, self._bucket).wait(_TIMEOUT)


def bytes_of(name: str, ranks: int, width: int) -> Stats:
    """Return the statistics of what rank 0 sends in one step."""
    hosted = HostedStore.start(f"unix:@torsh-benchmark-{secrets.token_hex(8)}", b"")

    def run(rank: int) -> Stats:
        with (
            StoreClient.connect(hosted.endpoint, b"", _TIMEOUT) as store,
            closing(NativeBackend.connect(store, rank, ranks, _TIMEOUT)) as backend,
        ):
            step = Step(name, ProcessGroup(backend, _TIMEOUT), width)
            step()
            return step.compressor.stats()

    with closing(hosted), ThreadPoolExecutor(ranks) as pool:
        return next(iter([*pool.map(run, range(ranks))]))


def measure(name: str, options: argparse.Namespace) -> Figure:
    """Return one compressor's figures."""
    step = Step(name, ProcessGroup(SingleBackend(), _TIMEOUT), options.width)
    step()  # creates the residuals
    stats = bytes_of(name, options.ranks, options.width)
    seconds = timing.typical(step, options.steps)
    return Figure(name, seconds * 1e3, stats.bytes_sent, stats.dense_bytes)


def checks(figures: Sequence[Figure]) -> list[Check]:
    """Return a check of each compressor's share of bytes."""
    return [
        Check(
            f"{figure.compressor}: of a dense all_reduce's bytes",
            figure.sent / figure.dense,
            MOST[figure.compressor],
            at_most=True,
            bar="bytes",
        )
        for figure in figures
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--compressors", type=_compressors, default=tuple(MOST), help="default: all")
    add("--steps", type=session.positive, default=9, help="that are timed; default: 9")
    add("--ranks", type=session.positive, default=2, help="the bars are for 2; default: 2")
    add("--mbit", type=float, default=100.0, help="of a link, Mbit/s; default: 100")
    add("--json", type=Path, metavar="FILE", help="write the figures and the machine's description")
    add("--quick", action="store_true", help="a small bucket: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    options.width = QUICK_WIDTH if options.quick else WIDTH
    return options


def _compressors(text: str) -> tuple[str, ...]:
    return session.several(text, tuple(MOST))


def report(figures: Sequence[Figure], mbit: float) -> str:
    """Return a table with one line for each compressor."""
    body = [
        [
            *(f.compressor, f"{f.ms:.1f}", f"{f.sent / 1e6:.3f}", f"{f.sent / f.dense:.2%}"),
            f"{f.speedup(mbit):.1f}",
        ]
        for f in figures
    ]
    return render(["compressor", "codec ms", "MB sent", "of dense", "times as fast"], body)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.ranks < 2:
        raise SystemExit("--ranks 1 sends nothing: give 2 or more")
    figures, interrupted = [], False
    try:
        for name in options.compressors:
            figures.append(measure(name, options))
    except KeyboardInterrupt:
        interrupted = True
    size = 4 * sum(map(math.prod, shapes(options.width)))
    print(f"a bucket of {size / 1e6:.1f} MB, {options.ranks} ranks; dense and compressed over")
    print(f"{options.mbit:g} Mbit/s are calculated from codec and bytes")
    print(report(figures, options.mbit))
    record = {"figures": [asdict(figure) for figure in figures]}
    return bars.conclude(options, checks(figures), record, interrupted)


if __name__ == "__main__":
    raise SystemExit(main())
