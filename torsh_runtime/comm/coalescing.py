"""Launches several operations of a group together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import NamedTuple

from torsh_runtime.backends.base import Backend, Reduce, ReduceOp
from torsh_runtime.backends.intercepting import Intercepting
from torsh_runtime.backends.operation import OBJECTS, Op
from torsh_runtime.backends.work import Work, in_seconds
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup


@contextmanager
def coalesce(group: ProcessGroup | None = None, async_op: bool = False) -> Iterator[Work]:
    """Hold back the operations that this thread calls in the group until the block ends.

    Then all are launched, and all_reduces in a row may be carried out as one. An exception in the
    block launches none. Arrays of a block must not overlap, and exchanges of Python objects, scans
    and split() cannot be held back.

    Args:
        group: The process group; None is the default group.
        async_op: Whether to leave the block at once, with the operations in progress.

    Yields:
        The Work of all operations, which `async_op=True` returns inside, too. Without `async_op`
            they are complete when the block has ended.

    Raises:
        ConfigError: If there is no default group.
        RuntimeError: If the group is coalescing already.
        CommError: If an operation fails, at the end of the block or from the Work's `wait()`.

    Example:
        ```python
        with tr.coalesce(async_op=True) as work:
            for gradient in gradients:
                tr.all_reduce(gradient)
        work.wait()
        ```
    """
    group = group or default_group()
    batch = _Batch(async_op)
    with group.intercepted(lambda backend: _Recorder(backend, batch)):
        yield batch
    with group.launching_together(batch.count):
        batch.launch()
    if not async_op:
        batch.wait()


def all_reduce_coalesced(
    tensors: Sequence[object],
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce each of the arrays in place over all ranks.

    Args:
        tensors: The arrays, in the same order and of the same sizes and dtypes on all ranks. They
            must not overlap.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.

    Returns:
        With `async_op` a Work, whose result is `tensors`; otherwise None, when all are reduced.

    Raises:
        TypeError: If an element is no array, or if `op` is not defined for its dtype.
        ValueError: If an array is read-only.
        RuntimeError: If it is called in a coalesce() block of the group.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        tr.all_reduce_coalesced([weight_gradient, bias_gradient], tr.ReduceOp.AVG)
        ```
    """
    group = group or default_group()
    with coalesce(group, async_op) as work:
        for tensor in tensors:
            group.all_reduce(tensor, op)
    return work.giving(tensors) if async_op else None


def all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[object]],
    input_tensor_list: Sequence[object],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy rank r's i-th input into `output_tensor_lists[r][i]`, for each r and i.

    Args:
        output_tensor_lists: A list for each rank, in order of rank, each with an array for each
            input.
        input_tensor_list: This rank's arrays.
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.

    Returns:
        With `async_op` a Work, whose result is all outputs in one list; otherwise None, when they
            are filled.

    Raises:
        TypeError: If an element is no array.
        ValueError: Unless there is a list for each rank, each as long as `input_tensor_list`, and
            if sizes or dtypes do not fit together.
        RuntimeError: If it is called in a coalesce() block of the group.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        own = [np.ones(2), np.zeros(3)]
        everyone = [[np.empty(2), np.empty(3)] for _ in range(tr.get_world_size())]
        tr.all_gather_coalesced(everyone, own)
        ```
    """
    group = group or default_group()
    lengths = {len(outputs) for outputs in output_tensor_lists}
    if lengths != {len(input_tensor_list)} or len(output_tensor_lists) != group.world_size:
        raise ValueError(
            f"output_tensor_lists must be {group.world_size} lists, one per rank, of "
            f"{len(input_tensor_list)} arrays, as many as input_tensor_list has"
        )
    with coalesce(group, async_op) as work:
        for outputs, tensor in zip(
            zip(*output_tensor_lists, strict=True), input_tensor_list, strict=True
        ):
            group.all_gather(outputs, tensor)
    everything = [output for outputs in output_tensor_lists for output in outputs]
    return work.giving(everything) if async_op else None


class _Recorder(Intercepting):
    """Records the operations of one thread."""

    def __init__(self, backend: Backend, batch: _Batch) -> None:
        super().__init__(backend)
        self._batch = batch
        self._thread = threading.get_ident()

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        call = _Call(self._backend, op, timeout)
        if threading.get_ident() != self._thread or op.kind in OBJECTS:
            return call.begin(async_op)
        return self._batch.add(call)


class _Call(NamedTuple):
    """Describes an operation that the batch begins."""

    backend: Backend
    op: Op
    timeout: float

    def begin(self, async_op: bool) -> Work:
        return self.op.begin(self.backend, self.timeout, async_op)


def _reduction(call: _Call) -> tuple[Reduce, float] | None:
    """Return what calls of all_reduce must have in common to become one; None for others."""
    return (call.op.reduction, call.timeout) if call.op.kind == "all_reduce" else None


class _Batch(Work):
    """Holds recorded operations, and then is one Work for all of them."""

    def __init__(self, async_op: bool) -> None:
        self._async_op = async_op
        self._calls: list[_Call] = []
        self._works: list[Work] | None = None

    def add(self, call: _Call) -> Work:
        self._calls.append(call)
        return self

    @property
    def count(self) -> int:
        """Return the number of its operations, before they are launched."""
        return len(self._calls)

    def launch(self) -> None:
        """Begin all of them; reductions in a row may become one.

        Messages cross, so none of them waits before all have begun.
        """
        self._works = []
        for how, calls in groupby(self._calls, _reduction):
            alike = list(calls)
            if how is None or len(alike) == 1:
                self._works += [each.begin(self._begins_all(each)) for each in alike]
            else:
                arrays = [each.op.output for each in alike]
                backend = alike[0].backend
                self._works += backend.all_reduce_coalesced(arrays, *how, self._async_op)
        self._calls.clear()

    def _begins_all(self, call: _Call) -> bool:
        return self._async_op or "peer" in call.op.takes

    def giving(self, outputs: Sequence[object]) -> Work:
        # Within the block, what one of the operations gives.
        return self if self._works is None else super().giving(outputs)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        seconds = in_seconds(timeout)
        end = None if seconds is None else time.monotonic() + seconds
        for work in self._launched():
            work.wait(None if end is None else max(end - time.monotonic(), 0.0))
        return True

    def done(self) -> bool:
        return self._works is not None and all(work.done() for work in self._works)

    def exception(self) -> BaseException | None:
        errors = (work.exception() for work in self._launched())
        return next((error for error in errors if error is not None), None)

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        works = self._launched()
        countdown = _Countdown(len(works) + 1, partial(callback, self))
        for work in works:
            work.add_done_callback(lambda _: countdown.step())
        countdown.step()

    @property
    def source(self) -> int | None:
        self._launched()
        return None

    def _launched(self) -> Sequence[Work]:
        if self._works is None:
            raise RuntimeError("these operations are launched when the coalesce() block has ended")
        return self._works


class _Countdown:
    """Calls `callback` at the last of `steps` steps, which any thread may take."""

    def __init__(self, steps: int, callback: Callable[[], None]) -> None:
        self._left = steps
        self._callback = callback
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._callback()
