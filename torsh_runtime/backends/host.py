"""The port's operations for libraries that take contiguous arrays in this process's memory.

Here arrays are staged and arguments checked; what remains for a backend are hooks that get flat
arrays of one dtype and of the right sizes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torsh_runtime.backends import operands
from torsh_runtime.backends.base import Reduce
from torsh_runtime.backends.operands import (
    Array,
    check_dtype,
    check_rank,
    check_size,
    flat,
    flat_list,
)
from torsh_runtime.backends.reductions import encoding
from torsh_runtime.backends.steps import Steps
from torsh_runtime.backends.stepwise import StepwiseBackend
from torsh_runtime.backends.work import Work


class HostBackend(StepwiseBackend):
    """A group over a library that works on this process's memory."""

    def all_reduce(self, array: object, op: Reduce, timeout: float, async_op: bool = False) -> Work:
        steps = self._staged_all_reduce(array, op)
        return self._collective("all_reduce", steps, timeout, async_op)

    def reduce(
        self, array: object, root: int, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        steps = self._staged_reduce(array, root, op)
        return self._collective("reduce", steps, timeout, async_op)

    def broadcast(self, array: object, root: int, timeout: float, async_op: bool = False) -> Work:
        steps = self._staged_broadcast(array, root)
        return self._collective("broadcast", steps, timeout, async_op)

    def all_gather(
        self, output: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        return self._collective(
            "all_gather", self._staged_all_gather(output, array), timeout, async_op
        )

    def all_gather_list(
        self, outputs: Sequence[object], array: object, timeout: float, async_op: bool = False
    ) -> Work:
        steps = self._staged_all_gather_list(outputs, array)
        return self._collective("all_gather", steps, timeout, async_op)

    def gather(
        self,
        outputs: Sequence[object] | None,
        array: object,
        root: int,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        return self._collective(
            "gather", self._staged_gather(outputs, array, root), timeout, async_op
        )

    def scatter(
        self,
        array: object,
        inputs: Sequence[object] | None,
        root: int,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        return self._collective(
            "scatter", self._staged_scatter(array, inputs, root), timeout, async_op
        )

    def reduce_scatter(
        self, output: object, array: object, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        steps = self._staged_reduce_scatter(output, array, op)
        return self._collective("reduce_scatter", steps, timeout, async_op)

    def reduce_scatter_list(
        self,
        output: object,
        inputs: Sequence[object],
        op: Reduce,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        steps = self._staged_reduce_scatter_list(output, inputs, op)
        return self._collective("reduce_scatter", steps, timeout, async_op)

    def all_to_all(
        self, output: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        return self._collective(
            "all_to_all", self._staged_all_to_all(output, array), timeout, async_op
        )

    def all_to_all_list(
        self,
        outputs: Sequence[object],
        inputs: Sequence[object],
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        steps = self._staged_all_to_all_list(outputs, inputs)
        return self._collective("all_to_all", steps, timeout, async_op)

    def send(
        self, array: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        return self._message("send", dst, self._staged_send(array, dst, tag), timeout, async_op)

    def recv(
        self, array: object, src: int | None, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        return self._message("recv", src, self._staged_recv(array, src, tag), timeout, async_op)

    def barrier(self, timeout: float, async_op: bool = False) -> Work:
        return self._collective("barrier", self._barrier(), timeout, async_op)

    def _staged_all_reduce(self, array: object, op: Reduce) -> Steps:
        with flat(array, writable=True) as values:
            encoding(values.dtype, op, self._world_size)  # refuses what is not defined
            return (yield from self._all_reduce(values, op))

    def _staged_reduce(self, array: object, root: int, op: Reduce) -> Steps:
        check_rank("root", root, self._world_size)
        with flat(array, writable=root == self._rank) as values:
            encoding(values.dtype, op, self._world_size)  # refuses what is not defined
            return (yield from self._reduce(values, root, op))

    def _staged_broadcast(self, array: object, root: int) -> Steps:
        check_rank("root", root, self._world_size)
        with flat(array, writable=root != self._rank) as values:
            return (yield from self._broadcast(values, root))

    def _staged_all_gather(self, output: object, array: object) -> Steps:
        with flat(array, writable=False) as source, flat(output, writable=True) as target:
            check_dtype("output", target, source)
            check_size("output", target, source.size * self._world_size, "world_size × the input's")
            return (yield from self._all_gather(target, source))

    def _staged_all_gather_list(self, outputs: Sequence[object], array: object) -> Steps:
        with (
            flat(array, writable=False) as source,
            flat_list("outputs", outputs, self._world_size, writable=True) as targets,
        ):
            operands.check_own_part("outputs", targets, source, self._rank)
            return (yield from self._all_gather_list(targets, source))

    def _staged_gather(self, outputs: Sequence[object] | None, array: object, root: int) -> Steps:
        check_rank("root", root, self._world_size)
        with flat(array, writable=False) as source:
            if root != self._rank:
                operands.none_here("outputs", outputs)
                return (yield from self._gather(None, source, root))
            with flat_list("outputs", outputs, self._world_size, writable=True) as targets:
                operands.check_own_part("outputs", targets, source, root)
                return (yield from self._gather(targets, source, root))

    def _staged_scatter(self, array: object, inputs: Sequence[object] | None, root: int) -> Steps:
        check_rank("root", root, self._world_size)
        with flat(array, writable=True) as target:
            if root != self._rank:
                operands.none_here("inputs", inputs)
                return (yield from self._scatter(target, None, root))
            with flat_list("inputs", inputs, self._world_size, writable=False) as sources:
                operands.check_own_part("inputs", sources, target, root)
                return (yield from self._scatter(target, sources, root))

    def _staged_reduce_scatter(self, output: object, array: object, op: Reduce) -> Steps:
        with flat(array, writable=False) as source, flat(output, writable=True) as target:
            check_dtype("output", target, source)
            check_size("array", source, target.size * self._world_size, "world_size × the output's")
            encoding(source.dtype, op, self._world_size)
            return (yield from self._reduce_scatter(target, source, op))

    def _staged_reduce_scatter_list(
        self, output: object, inputs: Sequence[object], op: Reduce
    ) -> Steps:
        with (
            flat(output, writable=True) as target,
            flat_list("inputs", inputs, self._world_size, writable=False) as sources,
        ):
            operands.check_own_part("inputs", sources, target, self._rank)
            encoding(target.dtype, op, self._world_size)
            return (yield from self._reduce_scatter_list(target, sources, op))

    def _staged_all_to_all(self, output: object, array: object) -> Steps:
        with flat(array, writable=False) as source, flat(output, writable=True) as target:
            operands.check_parts(target, source, self._world_size)
            return (yield from self._all_to_all(target, source))

    def _staged_all_to_all_list(self, outputs: Sequence[object], inputs: Sequence[object]) -> Steps:
        with (
            flat_list("inputs", inputs, self._world_size, writable=False) as sources,
            flat_list("outputs", outputs, self._world_size, writable=True) as targets,
        ):
            operands.check_own_part("outputs", targets, sources[self._rank], self._rank)
            return (yield from self._all_to_all_list(targets, sources))

    def _staged_send(self, array: object, dst: int, tag: int) -> Steps:
        operands.check_peer("dst", dst, self._rank, self._world_size)
        operands.check_tag(tag, self._largest_tag)
        with flat(array, writable=False) as source:
            return (yield from self._send(source, dst, tag))

    def _staged_recv(self, array: object, src: int | None, tag: int) -> Steps:
        if src is not None:
            operands.check_peer("src", src, self._rank, self._world_size)
        operands.check_tag(tag, self._largest_tag)
        with flat(array, writable=True) as target:
            return (yield from self._recv(target, src, tag))

    @property
    @abstractmethod
    def _largest_tag(self) -> int:
        """The largest tag that messages can have."""

    @abstractmethod
    def _all_reduce(self, values: Array, op: Reduce) -> Steps: ...

    @abstractmethod
    def _reduce(self, values: Array, root: int, op: Reduce) -> Steps: ...

    @abstractmethod
    def _broadcast(self, values: Array, root: int) -> Steps: ...

    @abstractmethod
    def _all_gather(self, target: Array, source: Array) -> Steps: ...

    @abstractmethod
    def _all_gather_list(self, targets: list[Array], source: Array) -> Steps: ...

    @abstractmethod
    def _gather(self, targets: list[Array] | None, source: Array, root: int) -> Steps: ...

    @abstractmethod
    def _scatter(self, target: Array, sources: list[Array] | None, root: int) -> Steps: ...

    @abstractmethod
    def _reduce_scatter(self, target: Array, source: Array, op: Reduce) -> Steps: ...

    @abstractmethod
    def _reduce_scatter_list(self, target: Array, sources: list[Array], op: Reduce) -> Steps: ...

    @abstractmethod
    def _all_to_all(self, target: Array, source: Array) -> Steps: ...

    @abstractmethod
    def _all_to_all_list(self, targets: list[Array], sources: list[Array]) -> Steps: ...

    @abstractmethod
    def _send(self, source: Array, dst: int, tag: int) -> Steps: ...

    @abstractmethod
    def _recv(self, target: Array, src: int | None, tag: int) -> Steps: ...

    @abstractmethod
    def _barrier(self) -> Steps: ...
