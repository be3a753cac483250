"""Records which operations each rank has called, and finds those that all have called.

It does no communication.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torsh_runtime.errors import CommMismatch

Key = tuple[str, str]
"""A call's kind and name. Ranks' calls with equal keys belong to one operation."""

_EQUAL_SHAPES = ("allreduce", "broadcast", "reducescatter", "shared_memory")


class Operand(NamedTuple):
    """Describes a tensor to other ranks."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    """The device's type, "cpu" or "cuda"."""

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}" + ("" if self.device == "cpu" else self.device)


@dataclass(frozen=True, slots=True)
class Call:
    """Describes an operation that a rank has called."""

    kind: str
    """The operation, such as "allreduce"."""
    name: str
    operands: tuple[Operand, ...] = ()
    op: str = ""
    """The reduction: "Average", "Sum", …; "" for operations without one."""
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    """The rank in the set that broadcasts; -1 for other operations."""
    splits: tuple[int, ...] = ()
    """Rows for each rank in an alltoall."""

    @property
    def key(self) -> Key:
        return self.kind, self.name

    def __str__(self) -> str:
        words = [f"'{self.name}'", *map(str, self.operands)]
        if self.op:
            words.append(f"op={self.op}")
        if (self.prescale, self.postscale) != (1.0, 1.0):
            words.append(f"scaled by {self.prescale:g} and {self.postscale:g}")
        if self.root >= 0:
            words.append(f"root_rank={self.root}")
        return f"{self.kind}({', '.join(words)})"

    @property
    def agreed(self) -> object:
        """Return the values that must be equal on all ranks."""
        if self.kind in _EQUAL_SHAPES:
            operands: object = self.operands
        else:  # the first dimension is each rank's own
            operands = tuple(each._replace(shape=each.shape[1:]) for each in self.operands)
        return operands, self.op, self.prescale, self.postscale, self.root


class Matched(NamedTuple):
    """Represents an operation that all ranks have called, except those that have joined."""

    key: Key
    calls: dict[int, Call]
    """Calls by rank of the set, without the ranks that have joined."""

    def mismatch(self, rank: int) -> CommMismatch | None:
        """Return the error that this rank raises if the calls do not fit together, or None."""
        first_rank, first = next(iter(self.calls.items()))
        for other_rank, other in self.calls.items():
            if other.agreed != first.agreed:
                pair = {first_rank: first, other_rank: other}
                own_rank = rank if rank in pair else first_rank
                other_rank = next(each for each in pair if each != own_rank)
                return CommMismatch(
                    0, own_rank, str(pair[own_rank]), other_rank, str(pair[other_rank])
                )
        return None


class Message(NamedTuple):
    """Holds the news that a rank sends to the others in a turn."""

    calls: Sequence[Call]
    """Calls that the rank has made since the last turn, in order."""
    joined: bool
    """True if the rank has called join()."""
    waits: Key | None
    """Key of the call that the rank waits for, if it can call nothing else before that is done."""


class CallTable:
    """Holds the calls that some ranks have made and others have not. It is equal on all ranks."""

    def __init__(self, world_size: int) -> None:
        self._pending: list[dict[Key, Call]] = [{} for _ in range(world_size)]
        self._waits: list[Key | None] = [None] * world_size
        self._joined: list[int] = []

    @property
    def joined(self) -> Sequence[int]:
        """Return the ranks that have joined, in the order in which they joined."""
        return self._joined

    def add(self, messages: Iterable[Message]) -> None:
        """Enter the messages of all ranks in a turn."""
        for rank, message in enumerate(messages):
            self._pending[rank].update({call.key: call for call in message.calls})
            self._waits[rank] = message.waits
            if message.joined and rank not in self._joined:
                self._joined.append(rank)

    def take(self) -> list[Matched]:
        """Remove and return the operations that can be carried out, ordered alike on all ranks."""
        active = [rank for rank in range(len(self._pending)) if rank not in self._joined]
        if not active:
            return []
        keys = [key for key in self._pending[active[0]] if self._is_complete(key, active)]
        return [Matched(key, {r: self._pending[r].pop(key) for r in active}) for key in keys]

    def _is_complete(self, key: Key, ranks: Sequence[int]) -> bool:
        return all(key in self._pending[rank] for rank in ranks)

    def all_joined(self) -> bool:
        """Return whether all ranks have joined, so that clear_joined() may be called."""
        return len(self._joined) == len(self._pending)

    def clear_joined(self) -> int:
        """Reset the joined ranks, once all have joined, and return the rank that joined last."""
        last = self._joined[-1]
        self._joined.clear()
        return last

    def is_stuck(self) -> bool:
        """Return whether every rank waits for a call that another rank will not make.

        That rank has joined, or is waiting itself.
        """
        ranks = range(len(self._pending))
        waiting = [rank for rank in ranks if self._waits[rank] in self._pending[rank]]
        return bool(waiting) and all(rank in waiting or rank in self._joined for rank in ranks)

    def stuck_error(self, rank: int) -> CommMismatch:
        """Return the error that this rank raises if is_stuck()."""
        waits = {
            each: self._pending[each][key]
            for each, key in enumerate(self._waits)
            if key in self._pending[each]
        }
        own_rank = rank if rank in waits else next(iter(waits))
        own = waits[own_rank]
        others = [each for each in range(len(self._waits)) if own.key not in self._pending[each]]
        other_call = str(waits.get(others[0], "join()"))
        detail = ", and each waits for what the other has not called"
        return CommMismatch(0, own_rank, str(own), others[0], other_call, detail)

    def missing(self, key: Key) -> list[int]:
        """Return the ranks that have not made this call."""
        return [rank for rank, pending in enumerate(self._pending) if key not in pending]

    def clear(self) -> None:
        """Forget all calls and all joined ranks."""
        self._joined.clear()
        for pending in self._pending:
            pending.clear()
