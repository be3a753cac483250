"""The port's operations for libraries that take contiguous arrays in this process's memory.

Here arrays are staged and arguments checked; what remains for a backend are hooks that get flat
arrays of one dtype and of the right sizes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from typing import Any

import numpy as np

from torsh_runtime.backends.library import operands
from torsh_runtime.backends.library.coroutine_work import Steps
from torsh_runtime.backends.library.failure_notifications import FailureNotifications
from torsh_runtime.backends.library.operands import Array, FlatParts, ends_of, flat
from torsh_runtime.backends.library.reductions import encoding
from torsh_runtime.backends.library.stepwise import StepwiseBackend
from torsh_runtime.backends.operation import Op, Reduce
from torsh_runtime.backends.work import Work

_OBJECT_TAGS = 512
"""Tags for objects; those with the same one, and the same sender and receiver, arrive in order."""
Take = Callable[[object, bool], Array]
"""Takes an array for the length of an operation, to be written to or not."""


class HostBackend(StepwiseBackend):
    """A group over a library that works on this process's memory."""

    def __init__(self, rank: int, world_size: int, news: FailureNotifications) -> None:
        super().__init__(rank, world_size, news)
        self._objects = count()

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        match op.kind:
            case "send" | "recv":
                return self._message(op, self._carry(op), timeout, async_op)
            case "send_object":
                sent = op._replace(kind="send")
                return self._message(sent, self._send_object(op), timeout, async_op)
            case "recv_object":
                room: list[Array] = []
                steps, coming = self._recv_object(op, room), Op("recv", (), peer=op.peer)
                return ObjectWork(self._message(coming, steps, timeout, async_op), room)
        return self._collective(op, self._carry(op), timeout, async_op)

    def _carry(self, op: Op) -> Steps:
        """Carry out the operation, with its arrays checked and staged."""
        with ExitStack() as stack:

            def take(array: object, writable: bool) -> Array:
                return stack.enter_context(flat(array, writable=writable))

            if "peer" in op.takes:
                return (yield from self._carry_message(op, take))
            if "array" in op.takes:
                return (yield from self._carry_in_place(op, take))
            if op.kind == "barrier":
                return (yield from self._barrier())
            targets, sources = ends_of(op, self._rank, self._world_size, take)
            if op.kind == "all_gather":
                return (yield from self._all_gather(targets, sources.arrays[0]))
            if op.kind == "reduce_scatter":
                target = targets.arrays[0]
                self._check_reduction(target, op)
                return (yield from self._reduce_scatter(target, sources, op.reduction))
            return (yield from self._exchange(targets, sources))

    def _carry_in_place(self, op: Op, take: Take) -> Steps:
        if "root" in op.takes:
            operands.check_rank("root", op.root, self._world_size)
        is_root = op.root == self._rank
        if op.kind == "broadcast":
            return (yield from self._broadcast(take(op.output, not is_root), op.root))
        values = take(op.output, op.kind == "all_reduce" or is_root)
        self._check_reduction(values, op)
        if op.kind == "reduce":
            return (yield from self._reduce(values, op.root, op.reduction))
        return (yield from self._all_reduce(values, op.reduction))

    def _carry_message(self, op: Op, take: Take) -> Steps:
        if op.kind == "send":
            operands.check_peer("dst", op.root, self._rank, self._world_size)
            tag = operands.check_tag(op.tag, self._largest_tag)
            return (yield from self._send(take(op.input, False), op.root, tag))
        tag = operands.check_tag(op.tag, self._largest_tag)
        self._check_source(op.peer)
        return (yield from self._recv(take(op.output, True), op.peer, tag))

    # An object is a message of its size and then one of its bytes, whose tag is in the first, so
    # that threads which receive at the same time get one object each.

    def _send_object(self, op: Op) -> Steps:
        operands.check_peer("dst", op.root, self._rank, self._world_size)
        with flat(op.input, writable=False) as source:
            number = next(self._objects) % _OBJECT_TAGS
            head = np.array([source.nbytes, number], np.int64)
            yield from self._send(head, op.root, self._object_tag(op))
            return (yield from self._send(source, op.root, self._content_tag(number)))

    def _recv_object(self, op: Op, room: list[Array]) -> Steps:
        self._check_source(op.peer)
        head = np.empty(2, np.int64)
        source = yield from self._recv(head, op.peer, self._object_tag(op))
        content = np.empty(head[0], np.uint8)
        yield from self._recv(content, source, self._content_tag(int(head[1])))
        room.append(content)
        return source

    def _check_reduction(self, values: Array, op: Op) -> None:
        """Raise TypeError if the reduction is not defined for the dtype."""
        encoding(values.dtype, op.reduction, self._world_size)

    def _object_tag(self, op: Op) -> int:
        return self._largest_tag + 1 + (op.tag or 0) % _OBJECT_TAGS

    def _content_tag(self, number: int) -> int:
        return self._largest_tag + 1 + _OBJECT_TAGS + number

    def _check_source(self, src: int | None) -> None:
        if src is not None:
            operands.check_peer("src", src, self._rank, self._world_size)

    @property
    def _largest_tag(self) -> int:
        """Return the largest tag that messages of `send` can have; those above are for objects."""
        return self._last_tag - 2 * _OBJECT_TAGS

    @property
    @abstractmethod
    def _last_tag(self) -> int:
        """Return the largest tag that the library's messages can have."""

    @abstractmethod
    def _all_reduce(self, values: Array, op: Reduce) -> Steps: ...

    @abstractmethod
    def _reduce(self, values: Array, root: int, op: Reduce) -> Steps: ...

    @abstractmethod
    def _broadcast(self, values: Array, root: int) -> Steps: ...

    @abstractmethod
    def _all_gather(self, targets: FlatParts, source: Array) -> Steps: ...

    @abstractmethod
    def _reduce_scatter(self, target: Array, sources: FlatParts, op: Reduce) -> Steps: ...

    @abstractmethod
    def _exchange(self, targets: FlatParts, sources: FlatParts) -> Steps:
        """Send each rank its part, which may have no elements, and receive one from it."""

    @abstractmethod
    def _send(self, source: Array, dst: int, tag: int) -> Steps: ...

    @abstractmethod
    def _recv(self, target: Array, src: int | None, tag: int) -> Steps: ...

    @abstractmethod
    def _barrier(self) -> Steps: ...


class ObjectWork(Work):
    """A recv_object under way."""

    def __init__(self, work: Work, room: list[Array]) -> None:
        """Wrap `work`; `room` receives the content when it has come."""
        self._work = work
        self._room = room

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        return self._work.wait(timeout)

    def done(self) -> bool:
        return self._work.done()

    def exception(self) -> BaseException | None:
        return self._work.exception()

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        self._work.add_done_callback(lambda _: callback(self))

    @property
    def source(self) -> int | None:
        return self._work.source

    @property
    def content(self) -> Any:
        return self._room[0] if self._room else None
