"""Enumerations whose numbers Python and the compiled core share.

The build generates the core's enumerations from this file (cmake/enumerations.py), in the order
that they have here; a change takes effect when the core is built again. Only the standard library
is imported, since the build and the launcher read this file without numpy or a core.
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
"""Entries of a recording besides operations, numbered after them: the wait for an asynchronous
operation, and the joint launch of several operations."""
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
"""The size of an element of each dtype, in bytes."""
DTYPES = tuple(ITEM_BYTES)
OF_LIST = -2
"""Takes the place of the root of a call with a list of arrays, which has no root."""
PATHS = ("shared memory", "network", "both", "nccl", "mpi", "gloo")
"""Paths that an operation's bytes may take, numbered from 1 on; 0 is unknown."""


class ReduceOp(IntEnum):
    """Selects how values of different ranks become one, as in torch.distributed.

    Integers wrap around on overflow; bool counts as one bit: SUM and MAX are OR, PRODUCT and MIN
    are AND. AVG and PREMUL_SUM are for numbers, MIN and MAX not for complex ones, BAND, BOR and
    BXOR for integers and bool.

    Raises:
        TypeError: From an operation, for a dtype that the reduction is not defined for.

    Example:
        ```python
        tr.all_reduce(gradient, tr.ReduceOp.AVG)
        tr.all_reduce(loss, tr.ReduceOp.PREMUL_SUM(0.5))
        ```
    """

    SUM = 0
    AVG = 1
    """The sum divided by the world size; integers round towards zero."""
    PRODUCT = 2
    MIN = 3
    """The smallest value; NaN if any rank has NaN, as numpy.minimum."""
    MAX = 4
    """The largest value; NaN if any rank has NaN, as numpy.maximum."""
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8
    """Sum of each rank's values times its own factor: ReduceOp.PREMUL_SUM(factor). Floating
    point only.
    """

    def __call__(self, factor: float) -> PremulSum:
        """Return the reduction PREMUL_SUM with this rank's factor.

        Raises:
            TypeError: For the other reductions.
        """
        if self is not ReduceOp.PREMUL_SUM:
            raise TypeError(f"ReduceOp.{self.name} takes no factor; PREMUL_SUM does")
        return PremulSum(factor)


class PremulSum(NamedTuple):
    """Represents the reduction PREMUL_SUM with this rank's factor.

    Example:
        ```python
        tr.all_reduce(gradient, tr.PremulSum(1 / tr.get_world_size()))
        ```
    """

    factor: float
    """The number that this rank's values are multiplied by before the sum."""


REDUCTIONS = tuple(ReduceOp.__members__)


class CommunicationStrategy(StrEnum):
    """Selects how ranks of several nodes carry out collectives.

    Example:
        ```python
        ring = tr.CommunicationStrategy.RING  # or "ring"
        mesh = tr.init_device_mesh((2, 4), ("dp", "tp"), comm_strategy=ring)
        ```
    """

    ADAPTIVE = "adaptive"
    """Chosen by size, and hierarchical where a node has several ranks; the default."""
    STANDARD = "standard"
    """Sent to a single rank by all, and from there to all."""
    RING = "ring"
    TREE = "tree"
    HIERARCHICAL = "hierarchical"
    """Work first within nodes, then between them."""


class FailureKind(IntEnum):
    """States why the core did not complete an operation."""

    NONE = 0
    PEER_LOST = 1
    """The peer's process has ended."""
    PEER_LEFT = 2
    """The peer has closed the group."""
    TIMEOUT = 3
    MISMATCH = 4
    ABORTED = 5
    CLOSED = 6
    """The group was closed by this process. This kind and the following ones concern only the
    caller; the group itself may be intact."""
    BUSY = 7
    """A different thread of this process did not release the group in time."""
    NESTED = 8
    """The caller was a signal handler that had interrupted an operation."""
    FORKED = 9
    """The caller is a fork of the rank's process."""
