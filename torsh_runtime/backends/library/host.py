"""The port's operations for libraries that take contiguous arrays in this process's memory.

Here arrays are staged and arguments checked; what remains for a backend are hooks that get flat
arrays of one dtype and of the right sizes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import numpy as np

from torsh_runtime.backends.base import Reduce
from torsh_runtime.backends.library import operands
from torsh_runtime.backends.library.news import News
from torsh_runtime.backends.library.operands import Array, FlatParts, check_rank, flat
from torsh_runtime.backends.library.reductions import encoding
from torsh_runtime.backends.library.steps import Steps
from torsh_runtime.backends.library.stepwise import StepwiseBackend
from torsh_runtime.backends.work import Work

_OBJECT_TAGS = 512
"""Tags for objects; those with the same one, and the same sender and receiver, arrive in order."""


class HostBackend(StepwiseBackend):
    """A group over a library that works on this process's memory."""

    def __init__(self, rank: int, world_size: int, news: News) -> None:
        super().__init__(rank, world_size, news)
        self._objects = count()

    def all_reduce(self, array: object, op: Reduce, timeout: float, async_op: bool = False) -> Work:
        def steps() -> Steps:
            with flat(array, writable=True) as values:
                encoding(values.dtype, op, self._world_size)  # refuses what is not defined
                return (yield from self._all_reduce(values, op))

        return self._collective("all_reduce", steps(), timeout, async_op, array, -1, op)

    def reduce(
        self, array: object, root: int, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        def steps() -> Steps:
            check_rank("root", root, self._world_size)
            with flat(array, writable=root == self._rank) as values:
                encoding(values.dtype, op, self._world_size)  # refuses what is not defined
                return (yield from self._reduce(values, root, op))

        return self._collective("reduce", steps(), timeout, async_op, array, root, op)

    def broadcast(self, array: object, root: int, timeout: float, async_op: bool = False) -> Work:
        def steps() -> Steps:
            check_rank("root", root, self._world_size)
            with flat(array, writable=root != self._rank) as values:
                return (yield from self._broadcast(values, root))

        return self._collective("broadcast", steps(), timeout, async_op, array, root)

    def all_gather(
        self, outputs: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        def steps() -> Steps:
            with (
                flat(array, writable=False) as source,
                self._parts("outputs", outputs, source, writable=True) as targets,
            ):
                return (yield from self._all_gather(targets, source))

        return self._collective("all_gather", steps(), timeout, async_op, array)

    def gather(
        self, outputs: object, array: object, root: int, timeout: float, async_op: bool = False
    ) -> Work:
        def steps() -> Steps:
            with (
                flat(array, writable=False) as source,
                self._parts_at("outputs", root, outputs, source, writable=True) as targets,
            ):
                return (yield from self._gather(targets, source, root))

        return self._collective("gather", steps(), timeout, async_op, array, root)

    def scatter(
        self, array: object, inputs: object, root: int, timeout: float, async_op: bool = False
    ) -> Work:
        def steps() -> Steps:
            with (
                flat(array, writable=True) as target,
                self._parts_at("inputs", root, inputs, target, writable=False) as sources,
            ):
                return (yield from self._scatter(target, sources, root))

        return self._collective("scatter", steps(), timeout, async_op, array, root)

    def reduce_scatter(
        self, output: object, inputs: object, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        def steps() -> Steps:
            with (
                flat(output, writable=True) as target,
                self._parts("inputs", inputs, target, writable=False) as sources,
            ):
                encoding(target.dtype, op, self._world_size)
                return (yield from self._reduce_scatter(target, sources, op))

        return self._collective("reduce_scatter", steps(), timeout, async_op, output, -1, op)

    def all_to_all(
        self, outputs: object, inputs: object, timeout: float, async_op: bool = False
    ) -> Work:
        def steps() -> Steps:
            operands.check_both(outputs, inputs)
            ranks, own = self._world_size, self._rank
            with (
                operands.flat_parts("inputs", inputs, ranks, writable=False) as sources,
                operands.flat_parts("outputs", outputs, ranks, writable=True) as targets,
            ):
                operands.check_part("outputs", targets, own, sources, sources.sizes[own])
                return (yield from self._all_to_all(targets, sources))

        return self._collective("all_to_all", steps(), timeout, async_op, inputs)

    def send(
        self, array: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        def steps() -> Steps:
            operands.check_peer("dst", dst, self._rank, self._world_size)
            operands.check_tag(tag, self._largest_tag)
            with flat(array, writable=False) as source:
                return (yield from self._send(source, dst, tag))

        return self._message("send", dst, steps(), timeout, async_op, array)

    def recv(
        self,
        array: object,
        src: int | None,
        tag: int | None,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        def steps() -> Steps:
            number = operands.check_tag(tag, self._largest_tag)
            self._check_source(src)
            with flat(array, writable=True) as target:
                return (yield from self._recv(target, src, number))

        return self._message("recv", src, steps(), timeout, async_op, array)

    # An object is a message of its size and then one of its bytes, whose tag is in the first, so
    # that threads which receive at the same time get one object each.

    def send_object(
        self, content: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        def steps() -> Steps:
            operands.check_peer("dst", dst, self._rank, self._world_size)
            with flat(content, writable=False) as source:
                number = next(self._objects) % _OBJECT_TAGS
                head = np.array([source.nbytes, number], np.int64)
                yield from self._send(head, dst, self._object_tag(tag))
                return (yield from self._send(source, dst, self._content_tag(number)))

        return self._message("send", dst, steps(), timeout, async_op, content)

    def recv_object(
        self, src: int | None, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        room: list[Array] = []

        def steps() -> Steps:
            self._check_source(src)
            head = np.empty(2, np.int64)
            source = yield from self._recv(head, src, self._object_tag(tag))
            content = np.empty(head[0], np.uint8)
            yield from self._recv(content, source, self._content_tag(int(head[1])))
            room.append(content)
            return source

        return ObjectWork(self._message("recv", src, steps(), timeout, async_op, ()), room)

    def barrier(self, timeout: float, async_op: bool = False) -> Work:
        return self._collective("barrier", self._barrier(), timeout, async_op)

    @contextmanager
    def _parts(
        self, name: str, given: object, own: Array, *, writable: bool
    ) -> Iterator[FlatParts]:
        """Of which this rank's own has the size of `own`."""
        with operands.flat_parts(name, given, self._world_size, writable=writable) as found:
            operands.check_part(name, found, self._rank, own, own.size)
            yield found

    @contextmanager
    def _parts_at(
        self, name: str, root: int, given: object, own: Array, *, writable: bool
    ) -> Iterator[FlatParts]:
        """The same on the root; nothing on the other ranks."""
        check_rank("root", root, self._world_size)
        if root == self._rank:
            with self._parts(name, given, own, writable=writable) as found:
                yield found
        else:
            operands.check_none(name, given)
            nothing = np.empty(0, own.dtype)
            yield operands.equal_parts(name, nothing, self._world_size)

    def _object_tag(self, tag: int) -> int:
        return self._largest_tag + 1 + tag % _OBJECT_TAGS

    def _content_tag(self, number: int) -> int:
        return self._largest_tag + 1 + _OBJECT_TAGS + number

    def _check_source(self, src: int | None) -> None:
        if src is not None:
            operands.check_peer("src", src, self._rank, self._world_size)

    @property
    def _largest_tag(self) -> int:
        """The largest tag that messages of `send` can have; those above are for objects."""
        return self._last_tag - 2 * _OBJECT_TAGS

    @property
    @abstractmethod
    def _last_tag(self) -> int:
        """The largest tag that the library's messages can have."""

    @abstractmethod
    def _all_reduce(self, values: Array, op: Reduce) -> Steps: ...

    @abstractmethod
    def _reduce(self, values: Array, root: int, op: Reduce) -> Steps: ...

    @abstractmethod
    def _broadcast(self, values: Array, root: int) -> Steps: ...

    # Parts of who is not the root have no elements.

    @abstractmethod
    def _all_gather(self, targets: FlatParts, source: Array) -> Steps: ...

    @abstractmethod
    def _gather(self, targets: FlatParts, source: Array, root: int) -> Steps: ...

    @abstractmethod
    def _scatter(self, target: Array, sources: FlatParts, root: int) -> Steps: ...

    @abstractmethod
    def _reduce_scatter(self, target: Array, sources: FlatParts, op: Reduce) -> Steps: ...

    @abstractmethod
    def _all_to_all(self, targets: FlatParts, sources: FlatParts) -> Steps: ...

    @abstractmethod
    def _send(self, source: Array, dst: int, tag: int) -> Steps: ...

    @abstractmethod
    def _recv(self, target: Array, src: int | None, tag: int) -> Steps: ...

    @abstractmethod
    def _barrier(self) -> Steps: ...


class ObjectWork(Work):
    """A recv_object under way."""

    def __init__(self, work: Work, room: list[Array]) -> None:
        """`room` gets the content when it has come."""
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
