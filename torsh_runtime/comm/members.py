"""Says who is in a group: its ranks, their numbers elsewhere and their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torsh_runtime.backends.base import Backend


class Members:
    """Provides the ranks of a group; see ProcessGroup."""

    _backend: Backend
    _own_backend: Backend
    _members: Sequence[int]
    _ranks: Sequence[int]
    _places: Mapping[object, int]
    _name: str
    _rank_names: Sequence[str]

    @property
    def rank(self) -> int:
        """Return this process's rank in the group, or -1 if it is no member."""
        return self._backend.rank

    @property
    def world_size(self) -> int:
        """Return the number of ranks in the group, or -1 if this process is no member."""
        return self._backend.world_size

    @property
    def ranks(self) -> Sequence[int]:
        """Return the members as ranks of the default group, in order."""
        return self._ranks

    @property
    def job_ranks(self) -> Sequence[int]:
        """Return the members as ranks of the launched job, which errors and reports name.

        The number is -1 for a rank of a different job; the result is () if the numbers are not
        known.
        """
        return self._own_backend.job_ranks

    @property
    def name(self) -> str:
        """Return the name that distinguishes the group from the job's other groups."""
        return self._name

    def group_rank(self, global_rank: int) -> int:
        """Return the rank in the group of a rank of the default group.

        Args:
            global_rank: A rank of the default group.

        Raises:
            ValueError: If it is no member.

        Example:
            ```python
            odd = tr.new_group([1, 3])
            odd.group_rank(3)  # 1
            ```
        """
        try:
            return self._places[global_rank]
        except (KeyError, TypeError):
            raise ValueError(
                f"rank {global_rank!r} is not in the group of ranks {list(self._ranks)}"
            ) from None

    def global_rank(self, group_rank: int) -> int:
        """Return the rank in the default group of a rank of this group.

        Args:
            group_rank: A rank of this group.

        Raises:
            ValueError: If the group has no such rank.

        Example:
            ```python
            odd = tr.new_group([1, 3])
            odd.global_rank(1)  # 3
            ```
        """
        if group_rank not in range(len(self._ranks)):
            raise ValueError(f"the group has {len(self._ranks)} ranks, and no rank {group_rank!r}")
        return self._ranks[group_rank]

    def name_ranks(self, names: Sequence[str], axis: str = "") -> None:
        """Set how errors call the ranks.

        Args:
            names: A name for each rank, in order, such as "rank 3, pp 1, tp 1".
            axis: The axis of the mesh that the ranks are along; "" if there is none.
        """
        self._rank_names = tuple(names)
        for backend in self._own_backend.members:
            backend.name_ranks(self._rank_names, axis)

    def called(self, group_rank: int) -> str:
        """Return the name of a rank for people.

        It is the rank in the default group and, if the group is of a mesh, the place there: the
        name that name_ranks() has set for `group_rank`, otherwise such as "rank 3".
        """
        names = self._rank_names
        return names[group_rank] if names else f"rank {self.global_rank(group_rank)}"

    def _member(self, rank: int) -> int:
        if rank not in self._members:
            raise ValueError(f"{rank!r} is not a rank of the group (0 to {self.world_size - 1})")
        return rank

    def _one_per_rank(self, name: str, arrays: Sequence[object]) -> list[object]:
        if len(arrays) != self.world_size:
            raise ValueError(
                f"{name} has {len(arrays)} arrays; it needs one per rank, {self.world_size}"
            )
        return [*arrays]

    def _only_at(
        self, name: str, arrays: Sequence[object] | None, root: int
    ) -> list[object] | None:
        if self.rank == root:
            return self._one_per_rank(name, arrays or ())
        if arrays:
            raise ValueError(f"{name} is for rank {root} only; give None on rank {self.rank}")
        return None

    def _other(self, rank: int, what: str) -> int:
        if rank == self.rank:
            raise ValueError(f"{what} is this process's own rank; copy the array instead")
        return self._member(rank)

    def _source(self, src: int | None) -> int | None:
        return None if src is None else self._other(src, "src")
