"""What Python and the compiled core number alike.

The build makes the core's enumerations of this file (cmake/enumerations.py), in the order in which
they stand here; what is changed here takes effect once the core is built again. Nothing but the
standard library is imported: the build and the launcher read it, and have neither numpy nor a core.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Literal, NamedTuple, get_args

Operation = Literal[
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send",
    "recv",
]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
NOTED = ("wait", "batch")
"""What a recording holds beside operations, numbered after them: a wait for one that goes on by
itself, and the launch of several together."""
ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""The bytes of an element of each dtype."""
DTYPES = tuple(ITEM_BYTES)
OF_LIST = -2
"""What stands for the root of a call with a list of arrays, which has none."""
PATHS = ("shared memory", "network", "both", "nccl", "mpi", "gloo")
"""Which way an operation's bytes went, numbered from 1 on; 0 is unknown."""


class ReduceOp(IntEnum):
    """How values of different ranks become one, as in torch.distributed.

    Integers wrap around on overflow; bool counts as one bit: SUM and MAX are OR, PRODUCT and MIN
    are AND. AVG and PREMUL_SUM are for numbers, MIN and MAX not for complex ones, BAND, BOR and
    BXOR for integers and bool. Other combinations raise TypeError.
    """

    SUM = 0
    AVG = 1
    """The sum divided by the world size; integers round towards zero."""
    PRODUCT = 2
    MIN = 3
    """NaN if any rank has NaN, as numpy.minimum."""
    MAX = 4
    """NaN if any rank has NaN, as numpy.maximum."""
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8
    """Each rank's values times its own factor, summed: ReduceOp.PREMUL_SUM(factor). Floating point
    only."""

    def __call__(self, factor: float) -> PremulSum:
        """The reduction PREMUL_SUM with this rank's factor; TypeError of the others."""
        if self is not ReduceOp.PREMUL_SUM:
            raise TypeError(f"ReduceOp.{self.name} takes no factor; PREMUL_SUM does")
        return PremulSum(factor)


class PremulSum(NamedTuple):
    """The reduction PREMUL_SUM with this rank's factor."""

    factor: float


REDUCTIONS = tuple(ReduceOp.__members__)


class CommunicationStrategy(StrEnum):
    """How ranks of several nodes carry out collectives."""

    ADAPTIVE = "adaptive"
    """By size, and hierarchical where a node has several ranks; the default."""
    STANDARD = "standard"
    """All to one rank, and from there to all."""
    RING = "ring"
    TREE = "tree"
    HIERARCHICAL = "hierarchical"
    """First within nodes, then between them."""


class FailureKind(IntEnum):
    """Why the core did not complete an operation."""

    NONE = 0
    PEER_LOST = 1
    """The peer's process has ended."""
    PEER_LEFT = 2
    """The peer has closed the group."""
    TIMEOUT = 3
    MISMATCH = 4
    ABORTED = 5
    CLOSED = 6
    """This process has closed the group. This kind and the following ones concern the caller alone;
    the group itself may be sound."""
    BUSY = 7
    """Another thread of this process has not given the group back in time."""
    NESTED = 8
    """A signal handler called it that had interrupted an operation."""
    FORKED = 9
    """This process is a fork of the rank's."""
