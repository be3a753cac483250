"""Operations of a group: as values, and as the methods that begin them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from torsh_runtime.backends.work import Work
from torsh_runtime.enumerations import PremulSum as PremulSum
from torsh_runtime.enumerations import ReduceOp as ReduceOp

Reduce = ReduceOp | PremulSum

TAKES: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("array", "reduction"),
    "reduce": ("array", "root", "reduction"),
    "broadcast": ("array", "root"),
    "all_gather": ("outputs", "input"),
    "gather": ("outputs", "input", "root"),
    "scatter": ("output", "inputs", "root"),
    "reduce_scatter": ("output", "inputs", "reduction"),
    "all_to_all": ("outputs", "inputs"),
    "barrier": (),
    "send": ("input", "peer", "tag"),
    "recv": ("output", "peer", "tag"),
    "send_object": ("input", "peer", "tag"),
    "recv_object": ("peer", "tag"),
}
"""The arguments of each kind of operation, in the order of its method. An array is both output and
input; outputs and inputs have a part for each rank, at the root only if there is one."""
OBJECTS = ("send_object", "recv_object")
COLLECTIVES = tuple(kind for kind, takes in TAKES.items() if "peer" not in takes)


class Op(NamedTuple):
    """Describes an operation and its arguments."""

    kind: str
    """A key of TAKES."""
    output: object = None
    """The target of results: an array, or parts."""
    input: object = None
    """The data to send: an array, which may be the output, or parts."""
    peer: int | None = -1
    """The root, or the other rank of a message; None: any."""
    reduction: Reduce = ReduceOp.SUM
    tag: int | None = 0

    @property
    def takes(self) -> tuple[str, ...]:
        """Return the names of the operation's arguments."""
        return TAKES[self.kind]

    @property
    def root(self) -> int:
        """Return the root, or -1 if there is none."""
        return -1 if self.peer is None else self.peer

    @property
    def arrays(self) -> dict[str, object]:
        """Return the operation's arrays and parts, by the arguments' names."""
        given = dict.fromkeys(("array", "output", "outputs"), self.output)
        given |= dict.fromkeys(("input", "inputs"), self.input)
        return {name: given[name] for name in self.takes if name in given}

    @property
    def measured(self) -> object:
        """Return the array, or parts, whose size counts for this rank."""
        return self.input if "outputs" in self.takes or self.output is None else self.output

    def begin(self, backend: Operations, timeout: float, async_op: bool = False) -> Work:
        """Call the backend's method of this kind."""
        arrays = self.arrays
        values = [arrays[name] if name in arrays else getattr(self, name) for name in self.takes]
        work: Work = getattr(backend, self.kind)(*values, timeout, async_op)
        return work


class Operations(ABC):
    """The methods that begin operations. `run` carries all of them out, unless a class has a
    shorter way for some.
    """

    @abstractmethod
    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        """Begin the operation."""

    def all_reduce(self, array: object, op: Reduce, timeout: float, async_op: bool = False) -> Work:
        """Reduce in place; all ranks get identical bits, also from run to run."""
        return self.run(Op("all_reduce", array, array, reduction=op), timeout, async_op)

    def reduce(
        self, array: object, root: int, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        """Reduce into root's array; the others' keep their contents."""
        return self.run(Op("reduce", array, array, root, op), timeout, async_op)

    def broadcast(self, array: object, root: int, timeout: float, async_op: bool = False) -> Work:
        """Copy root's array into everyone's."""
        return self.run(Op("broadcast", array, array, root), timeout, async_op)

    def all_gather(
        self, outputs: object, input: object, timeout: float, async_op: bool = False
    ) -> Work:
        """Copy rank r's input into outputs[r], for each r."""
        return self.run(Op("all_gather", outputs, input), timeout, async_op)

    def gather(
        self, outputs: object, input: object, root: int, timeout: float, async_op: bool = False
    ) -> Work:
        """Copy rank r's input into root's outputs[r], for each r; None on the other ranks."""
        return self.run(Op("gather", outputs, input, root), timeout, async_op)

    def scatter(
        self, output: object, inputs: object, root: int, timeout: float, async_op: bool = False
    ) -> Work:
        """Copy root's inputs[r] into rank r's output, for each r; None on the other ranks."""
        return self.run(Op("scatter", output, inputs, root), timeout, async_op)

    def reduce_scatter(
        self, output: object, inputs: object, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        """Reduce everyone's inputs[r] into rank r's output."""
        return self.run(Op("reduce_scatter", output, inputs, reduction=op), timeout, async_op)

    def all_to_all(
        self, outputs: object, inputs: object, timeout: float, async_op: bool = False
    ) -> Work:
        """Send inputs[r] to rank r's outputs[own rank].

        Both are arrays, or both are lists, whose sizes may differ from pair to pair.
        """
        return self.run(Op("all_to_all", outputs, inputs), timeout, async_op)

    def barrier(self, timeout: float, async_op: bool = False) -> Work:
        """Wait until every rank has called it."""
        return self.run(Op("barrier"), timeout, async_op)

    def send(
        self, array: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        """Send to one rank; complete when the array may be changed again.

        Messages with the same tag arrive in order. Unreceived ones up to 64 KiB for each pair of
        ranks never block; in a node of more than 32 ranks it is less, 16 KiB with 64.
        """
        return self.run(Op("send", None, array, dst, tag=tag), timeout, async_op)

    def recv(
        self,
        array: object,
        src: int | None,
        tag: int | None,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        """Receive from one rank, or from any (None): Work.source is the rank it came from.

        The tag may be None, too, for any: Work.tag is the message's. Backends other than native
        cannot receive messages of any tag and raise ValueError.
        """
        return self.run(Op("recv", array, None, src, tag=tag), timeout, async_op)

    def send_object(
        self, content: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        """Send bytes, an array of uint8, for recv_object. They and the messages of `send` never
        meet. tag: from 0 to 2**64 - 1."""
        return self.run(Op("send_object", None, content, dst, tag=tag), timeout, async_op)

    def recv_object(
        self, src: int | None, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        """Receive bytes, however many: Work.content, and Work.source."""
        return self.run(Op("recv_object", None, None, src, tag=tag), timeout, async_op)
