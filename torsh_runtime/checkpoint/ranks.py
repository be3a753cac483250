"""Exchanges messages between the ranks that save and load together, or within one process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.arrays.raw import copy_out, empty, memory_of
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.comm.agreement import agree, said, texts_of_all
from torsh_runtime.comm.choosing import backend_type
from torsh_runtime.comm.default import has_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import CheckpointError
from torsh_runtime.layout import Piece
from torsh_runtime.parallel.collecting import collected, meet
from torsh_runtime.parallel.groups import default_if_any, group_of


class Ranks:
    """Communicates among the ranks that save together."""

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group
        self._apart: Ranks | None = None
        self.rank = 0 if group is None else group.rank
        self.world_size = 1 if group is None else group.world_size

    @classmethod
    def of(cls, process_group: Any) -> Ranks:
        """Return the ranks of a process group; a Ranks is returned unchanged.

        None is the default group, or this process alone if there is no default group.
        """
        if isinstance(process_group, Ranks):
            return process_group
        if process_group is None and not has_default_group():
            return cls(None)
        return cls(group_of(process_group))

    @classmethod
    def of_model(cls, process_group: Any) -> Ranks:
        """Return the ranks that have parts of a model, as of() does, but for None also those of
        torch's default group if only torch has one, as wrappers of models do."""
        return cls(default_if_any()) if process_group is None else cls.of(process_group)

    def apart(self) -> Ranks:
        """Return the same ranks with a new group, for use by another thread. All ranks call it."""
        group = self._group
        if group is None:
            return self
        kind = backend_type("native" if "nccl" in group.backend else group.backend)
        return Ranks(group.session.group(group.name, group.ranks, kind, group.timeout))

    def numbers(self, own: Sequence[int]) -> list[list[int]]:
        """Return the numbers of all ranks, by rank."""
        if self._group is None:
            return [list(own)]
        told: list[list[int]] = self._group.all_gather_numbers(np.array(own, np.int64)).tolist()
        return told

    def texts(self, own: str) -> list[str]:
        """Return the texts of all ranks, by rank."""
        return [own] if self._group is None else texts_of_all(self._group, own)

    def agree(self, cannot: str, error: Exception | None) -> None:
        """Raise CheckpointError on all ranks if one has an error; `cannot` names what that rank
        cannot do."""
        problem = None if error is None else CheckpointError(f"{cannot}: {said(error)}")
        if problem is not None:
            problem.__cause__ = error
        if self._group is not None:
            agree(self._group, cannot, problem=problem, error=CheckpointError)
        elif problem is not None:
            raise problem

    def broadcast(self, own: NDArray[np.uint8], rank: int) -> NDArray[np.uint8]:
        """Return the bytes of the given rank, of any size, on all ranks."""
        size = self.numbers([own.size])[rank][0]
        values = own if self.rank == rank else np.empty(size, np.uint8)
        if self._group is not None and size:
            self._for_bytes(self._group).broadcast(values, rank)
        return values

    def broadcast_tensor(self, own: Any, dtype: str, shape: tuple[int, ...], framework: str) -> Any:
        """Return rank 0's tensor on all ranks, in the host's memory; `own` is used there alone."""
        if self._group is None:
            return own
        values = own if self.rank == 0 else empty(framework, shape, dtype)
        memory = memory_of(values)
        if memory is None:
            memory = np.empty(math.prod(shape) * ITEMSIZES[dtype], np.uint8)
            copy_out(values, memory)
        if memory.size:
            self._for_bytes(self._group).broadcast(memory, 0)
        return values

    def exchange(
        self, own: Sequence[NDArray[np.uint8]], room: Sequence[NDArray[np.uint8]] | None = None
    ) -> list[NDArray[np.uint8]]:
        """Send the r-th bytes to rank r and return what each rank sent to this one, by rank.

        room: receives the bytes, if all ranks know how many come; it is allocated if None.
        """
        if self._group is None:
            return list(own)
        if room is None:
            sizes = self.numbers([each.size for each in own])
            room = [np.empty(row[self.rank], np.uint8) for row in sizes]
        self._for_bytes(self._group).all_to_all(room, own)
        return list(room)

    def meet(self, what: str) -> None:
        """Wait for all ranks to call `what`: see parallel.collecting.meet()."""
        if self._group is not None:
            meet(self._group, what)

    def collected(self, own: Any, pieces: Mapping[int, Piece], dtype: str, like: Any) -> Any:
        """Return the whole tensor on rank 0: see parallel.collecting.collected()."""
        return collected(own, pieces, dtype, self._group, like)

    def _for_bytes(self, group: ProcessGroup) -> ProcessGroup:
        """Return a group that takes arrays in the host's memory."""
        if group.backend != "nccl":
            return group
        if self._apart is None:
            self._apart = self.apart()
        return self._apart._group or group
