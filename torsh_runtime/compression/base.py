"""What buckets and hooks are, and what all compressors have in common."""

from __future__ import annotations

import logging
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.compression.arrays import Array, is_finite, on_host, working_dtype
from torsh_runtime.compression.kept import Kept
from torsh_runtime.compression.wire import Stats, Wire
from torsh_runtime.numpy_or_cupy import array_module

_log = logging.getLogger("torsh_runtime")


class Bucket(Protocol):
    """One bucket of a model's gradients, as hooks get it: the same on all ranks but for its
    array's values."""

    @property
    def array(self) -> Array:
        """This rank's gradients one after the other: flat, numpy or cupy, of one dtype. A hook may
        use it as scratch; when its Work is done it holds the average over all ranks."""

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the gradients in it, in order."""

    @property
    def names(self) -> list[str]:
        """Of the gradients in it, in order; no other bucket has them."""

    def index(self) -> int:
        """Its number, from 0; stable from step to step once buckets were rebuilt."""

    def is_last(self) -> bool:
        """Whether it is the step's last one."""


@dataclass(slots=True)
class FlatBucket:
    """A bucket for those who call hooks themselves."""

    array: Array
    shapes: list[tuple[int, ...]]
    names: list[str]
    number: int = 0
    last: bool = True

    def index(self) -> int:
        """Its number, from 0."""
        return self.number

    def is_last(self) -> bool:
        """Whether it is the step's last one."""
        return self.last


Hook = Callable[[Any, Bucket], Work]
"""hook(state, bucket): begins to average the bucket's array over all ranks. `state` is what it was
registered with; compressors take a ProcessGroup, and None for the default group."""


class Turn(NamedTuple):
    """One bucket of one step."""

    wire: Wire
    bucket: Bucket
    step: int
    """From 0; the same on all ranks."""
    ratio: float | None = None
    """What compressors that have a ratio use instead of their own."""


class Compressor(ABC):
    """A hook that sends less than the bucket, and so averages it approximately.

    All ranks get identical bits. What is not finite makes the result so on all ranks. Buckets are
    of float16, bfloat16, float32 or float64 (else TypeError); the first two are computed in
    float32. Calls are made in the same order on all ranks, as all collectives. On backends
    that can, all of it happens on the group's own thread, in the order of its operations.

    With error feedback what a step did not send is added to the next step's gradient (Seide et
    al., Interspeech 2014; Karimireddy et al., ICML 2019), and is forgotten where it is not finite.
    """

    def __init__(self, error_feedback: bool) -> None:
        self.error_feedback = error_feedback
        self._residuals = Kept()
        self._stats = Stats()
        self._steps = 0
        self._place: tuple[int, int] | None = None
        self._settled: object = None

    def __repr__(self) -> str:
        options = {name: value for name, value in vars(self).items() if name[0] != "_"}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in options.items())})"

    def __getstate__(self) -> dict[str, Any]:
        """Where it is unpickled, or copied, it sees anew that ranks agree."""
        return {**vars(self), "_settled": None}

    def __call__(self, state: ProcessGroup | None, bucket: Bucket) -> Work:
        """Begin to average the bucket's array over the group's ranks; the Work's result is the
        array. ConfigError if ranks' compressors differ, from wait() or at once."""
        group = state or default_group()
        dtype = working_dtype(bucket.array)
        on_cpu = array_module(bucket.array) is np  # a GPU's device and stream are this thread's
        work = group.in_order(lambda: self._average(group, bucket, dtype), async_op=on_cpu)
        return work.giving((bucket.array,))

    def stats(self) -> Stats:
        """What was sent since it was made."""
        return replace(self._stats)

    def state_dict(self) -> dict[str, Any]:
        """All that a restart needs to go on with the same bits: numbers, and numpy arrays by the
        gradients' names. It is this rank's own; to be called when no bucket is under way."""
        size, rank = self._place or (0, 0)
        arrays = {key: kept.state() for key, kept in {**self._own(), **self._shared()}.items()}
        return {"steps": self._steps, "world_size": size, "rank": rank, **arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. With another world size or as another rank the first bucket says so in
        the log, and what ranks have of their own, such as residuals, is begun anew."""
        self._steps = int(state["steps"])
        size, rank = int(state["world_size"]), int(state["rank"])
        self._place = (size, rank) if size else None
        self._settled = None
        for key, kept in {**self._own(), **self._shared()}.items():
            kept.load(state.get(key, {}))

    def reduce(self, turn: Turn, dtype: np.dtype[Any]) -> Array | None:
        """Average the bucket's array; the indices that were sent, None if that is not by index."""
        array = turn.bucket.array
        if self.error_feedback:
            pending = self._residuals.of(turn.bucket, dtype)
            pending += array
        else:
            pending = array.astype(dtype)
        out = array if array.dtype == dtype else array_module(array).empty(array.size, dtype)
        sent = self._exchange(turn, pending, out)
        if out is not array:
            array[...] = out
        if self.error_feedback and not is_finite(pending):
            pending[~array_module(pending).isfinite(pending)] = 0
        return sent

    @abstractmethod
    def _exchange(self, turn: Turn, pending: Array, out: Array) -> Array | None:
        """Send what is pending, or some of it, and take it away there; write the average of what
        all have sent to `out`, whose contents are of no use. Returns as `reduce`."""

    def _own(self) -> dict[str, Kept]:
        """What this rank keeps for itself."""
        return {"residuals": self._residuals}

    def _shared(self) -> dict[str, Kept]:
        """What all ranks keep alike."""
        return {}

    def _average(self, group: ProcessGroup, bucket: Bucket, dtype: np.dtype[Any]) -> None:
        wire = Wire(group, self._stats)
        self._settle(group, wire)
        if bucket.array.size:
            with np.errstate(all="ignore"):  # what is not finite is passed on
                self.reduce(Turn(wire, bucket, self._steps), dtype)
        wire.dense(bucket.array.size)
        if bucket.is_last():
            self._steps += 1
            self._stats.steps += 1

    def _settle(self, group: ProcessGroup, wire: Wire) -> None:
        """Before the first bucket in a group, as it is configured: see that the ranks agree."""
        here = weakref.ref(group), group.name
        if here == self._settled:
            return
        place = wire.world_size, wire.rank
        if self._place not in (None, place):
            _log.warning(
                "%s was rank %d of %d and is rank %d of %d: it forgets what it kept for itself",
                *(type(self).__name__, *reversed(self._place or place), *reversed(place)),
            )
            for kept in self._own().values():
                kept.clear()
        shared = 0
        for kept in self._shared().values():
            for name in sorted(kept.arrays):
                shared = zlib.crc32(on_host(kept.arrays[name]).tobytes(), shared)
        wire.check_agreed(repr(self), self._steps, shared)
        self._place, self._settled = place, here
