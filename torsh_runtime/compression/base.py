"""Defines buckets, hooks, and the base class of all compressors."""

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
from torsh_runtime.compression.arrays import (
    Array,
    array_module,
    drop_what_is_not_finite,
    on_host,
    working_dtype,
)
from torsh_runtime.compression.residuals import Residuals
from torsh_runtime.compression.streams import SideStreams, as_tensor
from torsh_runtime.compression.tensors import TensorArray
from torsh_runtime.compression.wire import Stats, Wire

_log = logging.getLogger("torsh_runtime")


class Bucket(Protocol):
    """Represents one bucket of gradients for hooks. It differs between ranks only in its values.

    Example:
        ```python
        def hook(group, bucket):
            return tr.all_reduce(bucket.array, tr.ReduceOp.AVG, group, async_op=True)

        model.register_comm_hook(None, hook)
        ```
    """

    @property
    def array(self) -> Array:
        """Return this rank's gradients one after the other: flat, numpy or cupy, of one dtype.

        A hook may use the array as scratch. When its Work is done, it holds the average over all
        ranks.
        """

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the bucket's gradients, in order."""

    @property
    def names(self) -> list[str]:
        """Return the names of the bucket's gradients, in order; no other bucket has them."""

    def index(self) -> int:
        """Return the bucket's number, from 0. It is stable once buckets have been rebuilt."""

    def is_last(self) -> bool:
        """Return whether this is the step's last bucket."""


@dataclass(slots=True)
class FlatBucket:
    """Provides a bucket for programs that call hooks themselves.

    Example:
        ```python
        bucket = tr.compression.FlatBucket(gradient, [gradient.shape], ["weight"])
        tr.compression.Int8()(None, bucket).wait()  # gradient is now the average
        ```
    """

    array: Array
    """The gradients in sequence: flat, numpy, cupy or a torch tensor, of one dtype."""
    shapes: list[tuple[int, ...]]
    """The shapes of the gradients, in order."""
    names: list[str]
    """The names of the gradients, in order."""
    number: int = 0
    """The bucket's number, from 0."""
    last: bool = True
    """True for the step's last bucket."""

    def index(self) -> int:
        """Return the bucket's number, from 0."""
        return self.number

    def is_last(self) -> bool:
        """Return whether this is the step's last bucket."""
        return self.last


Hook = Callable[[Any, Bucket], Work]
"""A hook, called as hook(state, bucket), begins to average the bucket's array over all ranks.

`state` is what it was registered with. Compressors take a ProcessGroup, or None for the default
group.
"""


class Turn(NamedTuple):
    """Describes the exchange of one bucket in one step."""

    wire: Wire
    bucket: Bucket
    step: int
    """Number of the step from 0, equal on all ranks."""
    ratio: float | None = None
    """Replaces the ratio of compressors that have one."""


class Compressor(ABC):
    """Averages buckets approximately by sending less than their gradients; used as a hook.

    All ranks get identical bits. A value that is not finite makes the result so on all ranks.
    Buckets are float16, bfloat16, float32 or float64 (else TypeError); the first two are computed
    in float32. All ranks make the calls in the same order, as for collectives. If the backend can,
    all work happens on the group's own thread, in the order of its operations.

    With error feedback what a step did not send is added to the next step's gradient (Seide et al.,
    Interspeech 2014; Karimireddy et al., ICML 2019), and is forgotten where it is not finite.

    Example:
        ```python
        compressor = tr.compression.TopK(ratio=0.01)
        model = tr.DistributedDataParallel(model, gradient_compression=compressor)
        print(compressor.stats().ratio)  # after some steps
        ```
    """

    def __init__(self, error_feedback: bool) -> None:
        """Create the compressor.

        Args:
            error_feedback: Whether to add what a step did not send to the next step's gradient.
        """
        self.error_feedback = error_feedback
        self._residuals = Residuals()
        self._stats = Stats()
        self._steps = 0
        self._place: tuple[int, int] | None = None
        self._settled: object = None
        self._sides = SideStreams()

    def __repr__(self) -> str:
        options = {name: value for name, value in vars(self).items() if name[0] != "_"}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in options.items())})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling or copying; the copy checks again that ranks agree."""
        return {**vars(self), "_settled": None, "_sides": SideStreams()}

    def __call__(self, state: ProcessGroup | None, bucket: Bucket) -> Work:
        """Begin to average the bucket's array over the group's ranks, in place.

        Args:
            state: The group; None is the default group.
            bucket: The bucket.

        Returns:
            A Work whose result is the array.

        Raises:
            ConfigError: Here or in wait(), if ranks' compressors differ.
            TypeError: For unsupported dtypes.
            CommError: Here or in wait(), if communication fails.
        """
        group = state or default_group()
        tensor = _tensor_of(bucket)
        if tensor is not None:
            return self._average_tensor(group, bucket, tensor)
        dtype = working_dtype(bucket.array)
        on_cpu = array_module(bucket.array) is np  # a GPU's device and stream are this thread's
        work = group.in_order(lambda: self._average(group, bucket, dtype), async_op=on_cpu)
        return work.giving((bucket.array,))

    def _average_tensor(self, group: ProcessGroup, bucket: Bucket, tensor: Any) -> Work:
        """Average a torch tensor by torch's operations, on a GPU beside what comes next."""
        array = TensorArray(tensor.detach())
        facts = bucket.shapes, bucket.names, bucket.index(), bucket.is_last()
        dtype = working_dtype(array)

        def average() -> None:
            self._average(group, FlatBucket(array, *facts), dtype)

        if tensor.is_cuda:
            work = self._sides.run(average, tensor)
        else:
            work = group.in_order(average, async_op=True)
        return work.giving((tensor,))

    def stats(self) -> Stats:
        """Return a copy of the counts of what was sent so far.

        Example:
            ```python
            print(f"{compressor.stats().ratio:.1%} of the bytes were sent")
            ```
        """
        return replace(self._stats)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, with which a restart continues with identical bits.

        It has numbers, and numpy arrays by the gradients' names. Call it when no bucket is being
        averaged.

        Example:
            ```python
            state = {"model": model, "compressor": tr.checkpoint.PerRank(compressor)}
            checkpointer.save(step, state)
            ```
        """
        size, rank = self._place or (0, 0)
        arrays = {key: kept.state() for key, kept in {**self._own(), **self._shared()}.items()}
        return {"steps": self._steps, "world_size": size, "rank": rank, **arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        If the world size or rank has changed, the first bucket logs a warning, and what each rank
        keeps for itself, such as residuals, is reset.

        Args:
            state: What state_dict() returned.
        """
        self._steps = int(state["steps"])
        size, rank = int(state["world_size"]), int(state["rank"])
        self._place = (size, rank) if size else None
        self._settled = None
        for key, kept in {**self._own(), **self._shared()}.items():
            kept.load(state.get(key, {}))

    def reduce(self, turn: Turn, dtype: np.dtype[Any]) -> Array | None:
        """Average the bucket's array, computing in `dtype`.

        Args:
            turn: The bucket, its step and the group.
            dtype: The dtype of the computation.

        Returns:
            The indices that were sent; None if not sent by index.
        """
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
        if self.error_feedback:
            drop_what_is_not_finite(pending)
        return sent

    @abstractmethod
    def _exchange(self, turn: Turn, pending: Array, out: Array) -> Array | None:
        """Send all or part of `pending`, and subtract there what was sent.

        Write the average of what all ranks have sent to `out`, whose previous contents are
        undefined. Returns as reduce().
        """

    def _own(self) -> dict[str, Residuals]:
        """Return what this rank keeps for itself."""
        return {"residuals": self._residuals}

    def _shared(self) -> dict[str, Residuals]:
        """Return what all ranks keep with equal values."""
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
        """Check that ranks agree, before the first bucket in a group as it is configured now."""
        here = weakref.ref(group), group.name
        if here == self._settled:
            return
        place = wire.world_size, wire.rank
        if self._place not in (None, place):
            _log.warning(
                "%s was rank %d of %d and is rank %d of %d: it discards what it kept for itself",
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


def _tensor_of(bucket: Bucket) -> Any:
    """Return the bucket's torch tensor: the one that it has as its array, or on a GPU its buffer;
    None if it has neither."""
    buffer: Callable[[], Any] | None = getattr(bucket, "buffer", None)
    tensor = as_tensor(bucket.array if buffer is None else buffer())
    return tensor if buffer is None or (tensor is not None and tensor.is_cuda) else None
