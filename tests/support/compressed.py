"""Compressors, and steps of them on the ranks of a world."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.forked import Raised
from support.worlds import run_threads

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.compression import (
    Cast,
    Compressor,
    FlatBucket,
    Int8,
    MomentumCorrection,
    OneBit,
    PowerSGD,
    RandomK,
    Threshold,
    TopK,
)

TIMEOUT = 60.0
Shapes = Sequence[tuple[int, ...]]

COMPRESSORS: dict[str, Callable[[], Compressor]] = {
    "topk": lambda: TopK(0.1),
    "topk-k": lambda: TopK(k=7),
    "topk-float16": lambda: TopK(0.1, values="float16"),
    "randomk": lambda: RandomK(0.1),
    "threshold": lambda: Threshold(1.0, values="bfloat16"),
    "onebit": lambda: OneBit(block=64),
    "int8": lambda: Int8(block=64),
    "int8-feedback": lambda: Int8(block=64, error_feedback=True),
    "fp16": lambda: Cast("float16", error_feedback=True),
    "bf16": lambda: Cast("bfloat16", error_feedback=True),
    "powersgd": lambda: PowerSGD(2),
    "powersgd-float16": lambda: PowerSGD(2, values="float16"),
    "dgc": lambda: MomentumCorrection(TopK(0.1), clip_norm=100.0, warmup_steps=2),
}
"""Each kind, with options under which it loses much on small buckets."""
WITH_FEEDBACK = [name for name in COMPRESSORS if name not in ("int8", "dgc")]


def alone() -> ProcessGroup:
    """A group of this process."""
    return ProcessGroup(SingleBackend(), TIMEOUT)


def on_ranks(ranks: int, body: Callable[[ProcessGroup], Any]) -> list[Any]:
    """body(group) on threads, each a rank; what each returned. Raises what one has raised."""

    def run(backend: Backend) -> Any:
        return body(ProcessGroup(backend, TIMEOUT))

    results = run_threads(ranks, run)
    for result in results:
        if isinstance(result, Raised):
            raise result.error
    return results


def bucket_of(
    array: NDArray[Any], shapes: Shapes | None = None, names: Sequence[str] | None = None
) -> FlatBucket:
    """A step's only one. Without shapes one flat gradient."""
    shapes = [array.shape] if shapes is None else [*shapes]
    assert sum(map(math.prod, shapes)) == array.size
    return FlatBucket(array, shapes, [*(names or [f"g{i}" for i in range(len(shapes))])])


def average(
    compressor: Compressor, group: ProcessGroup, array: NDArray[Any], shapes: Shapes | None = None
) -> NDArray[Any]:
    """The array, averaged by a step of the compressor."""
    work = compressor(group, bucket_of(array, shapes))
    work.wait(TIMEOUT)
    assert work.result()[0] is array
    return array


def residual(compressor: Compressor) -> NDArray[Any]:
    """What is kept of all gradients, flat."""
    kept = compressor.state_dict()["residuals"]
    return np.concatenate([array.ravel() for array in kept.values()])


def gradients(step: int, rank: int, size: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Of magnitudes that differ much."""
    draw = np.random.default_rng((step, rank, size))
    return (draw.standard_normal(size) * draw.exponential(1.0, size)).astype(dtype)
