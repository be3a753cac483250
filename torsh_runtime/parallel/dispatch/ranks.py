"""The ranks that a layer of experts is spread over, and who has which tokens."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Tensor
from torsh_runtime.layout import even_cuts
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.dispatch.routing import Indices
from torsh_runtime.parallel.dispatch.rows import Scaled
from torsh_runtime.parallel.groups import group_of

_DEFAULT_NAME = "ep"
_ROUNDED = 1e-2
"""The part of the largest element by which ranks' copies of a token may differ."""


@dataclass(frozen=True, slots=True)
class Share:
    """The tokens that this rank sends to the experts, of those that several ranks have.

    Each token is sent by one rank alone, and all get the same bytes back. If several sent it, its
    copies would lie in different rows of one product, where kernels do not round them alike.
    """

    group: ProcessGroup | None
    """The ranks with the same tokens; None: nobody else has this rank's."""
    cuts: tuple[int, ...]
    """The tokens of rank r of the group are cuts[r] to cuts[r + 1]."""

    @property
    def start(self) -> int:
        """Return the first token of this rank's share."""
        return self.cuts[self._rank]

    @property
    def end(self) -> int:
        """Return the token after the last one of this rank's share."""
        return self.cuts[self._rank + 1]

    def part(self, tensor: Tensor) -> Any:
        """Return this rank's rows of (tokens, …)."""
        if self.group is None:
            return tensor
        return regions.scatter(tensor, self.group, 0, self._sizes)

    def whole(self, tensor: Tensor) -> Any:
        """Return the rows of all ranks: (tokens, …)."""
        if self.group is None:
            return tensor
        return regions.gather(tensor, self.group, 0, self._sizes)

    @property
    def _rank(self) -> int:
        return 0 if self.group is None else self.group.rank

    @property
    def _sizes(self) -> list[int]:
        return np.diff(self.cuts).tolist()


@dataclass(frozen=True, slots=True)
class Ranks:
    """The groups that experts and tokens are spread over. Copies of a layer have the same."""

    name: str
    """The name of the experts' axis in layouts."""
    experts: ProcessGroup
    tokens: ProcessGroup
    copies: ProcessGroup | None = None
    """Ranks of the experts' axis that have the same tokens as this one, if there are any."""
    parts: ProcessGroup | None = None
    """Ranks that have the other tokens of this rank's batch, if there are any."""
    alike: ProcessGroup | None = None
    """Ranks of `parts` that have the same experts."""
    beside: tuple[ProcessGroup, ...] = ()
    """Groups whose ranks are compared at the first tokens: each has the same tokens or parts."""

    @classmethod
    def of(cls, mesh: Any, data: Any, sequence: Any) -> Self:
        """Return the ranks for a MixtureOfExperts. Raises ConfigError for a mesh of several
        axes, which layouts could not name, for a sequence of a different mesh, and if it is
        unknown which ranks have the same tokens."""
        name, experts = _DEFAULT_NAME, group_of(mesh)
        if isinstance(mesh, DeviceMesh):
            name, *others = mesh.mesh_dim_names
            if others:
                raise ConfigError(
                    f"MixtureOfExperts: {mesh} has several axes: make one of them by view(), as in "
                    f"mesh.view({{'ep': -1}}, over=('dp', 'cp'))['ep']"
                )
        tokens = experts if data is None else group_of(data)
        copies = _copies(mesh, experts, data, tokens)
        if sequence is None:
            return cls(name, experts, tokens, copies, beside=(copies,) if copies else ())
        if not isinstance(sequence, DeviceMesh) or not isinstance(mesh, DeviceMesh):
            raise ConfigError(
                f"MixtureOfExperts: sequence={sequence} and mesh={mesh}: pass axes of one mesh, as "
                f"mesh['tp'] and mesh['ep'], which tell who has the same experts"
            )
        if sequence.size_along(name) != experts.world_size:
            raise ConfigError(
                f"MixtureOfExperts: {sequence} is of a mesh without the axis {name!r} of {mesh}: "
                f"take both from the mesh that view() gave"
            )
        parts, alike = group_of(sequence), sequence.alike([name])
        return cls(name, experts, tokens, copies, parts, alike, (parts,))

    @classmethod
    def on(cls, mesh: DeviceMesh, name: str) -> Self:
        """Return the ranks of a model on a mesh, whose experts are along the axis of this name.
        Ranks along "tp" have the same tokens, those along all other axes tokens of their own.
        Raises ConfigError for a part of a mesh that does not tell of all of these, and for
        experts in several stages."""
        experts, (beside,) = mesh[name], {mesh.size_along("tp") or 1}
        if beside > 1 and "tp" not in mesh.mesh_dim_names:
            raise ConfigError(
                f"{mesh} is a part of a mesh with an axis 'tp', along which ranks have the same "
                f"tokens, and does not tell which these are: pass the whole mesh"
            )
        group = experts.get_group()
        if mesh.size_along("pp") and experts.alike(["pp"]).world_size != group.world_size:
            raise ConfigError(
                f"ranks along {name!r} of {mesh} are in several stages, which have experts of "
                f"their own: make it a view over axes without 'pp'"
            )
        batches = [each for each in mesh.mesh_dim_names if each not in ("tp", "pp")]
        copies = experts.alike(batches)
        tokens = group_of(mesh[tuple(batches)]) if batches else mesh.alike(mesh.mesh_dim_names)
        return cls(name, group, tokens, copies if copies.world_size > 1 else None)

    @property
    def ranks_of_batch(self) -> int:
        """Return how many ranks of the experts' axis send the tokens of one batch, which has one
        loss."""
        parts = 1 if self.parts is None else len({*self.parts.ranks} & {*self.experts.ranks})
        return parts if self.copies is None else parts * self.copies.world_size

    def averaged(self, weight: Any) -> Any:
        """Return a weight of experts, whose gradient is averaged over the losses of those whose
        tokens come here."""
        share = Scaled(self.ranks_of_batch / self.experts.world_size)
        return regions.applied(shared(weight, self.alike), share)

    def problem(self) -> str:
        """Return what is wrong with the ranks, or "" if nothing is."""
        if self.parts is None or {*self.parts.ranks} <= {*self.tokens.ranks}:
            return ""
        parts, tokens = (", ".join(map(str, g.ranks)) for g in (self.parts, self.tokens))
        return (
            f"ranks {parts} have parts of one sequence, and not all are among {tokens}, who have "
            f"tokens: pass data=mesh['dp', 'cp', 'tp'], with them"
        )

    def share_of(self, tokens: int) -> Share:
        """Return the share of this many tokens that this rank sends to the experts."""
        parts = 1 if self.copies is None else self.copies.world_size
        return Share(self.copies, even_cuts(tokens, parts))

    def counts_of_all(self, own: Indices, chosen: Indices) -> Indices:
        """Return the rows that each rank sends to each expert, (ranks, experts), in one exchange.
        own: those of this rank. chosen: (tokens, top_k), the experts of all its tokens.

        Raises ConfigError on all ranks of the experts' axis if ranks that ought to have the same
        tokens have chosen different experts for them."""
        if self.copies is None:
            return self.experts.all_gather_numbers(own)
        note = self.copies.ranks[0], len(chosen), zlib.crc32(np.ascontiguousarray(chosen).data)
        told = self.experts.all_gather_numbers(np.array([*own, *note], np.int64))
        return self.checked(told, len(own))

    def checked(self, told: Indices, experts: int) -> Indices:
        """Return the counts of rows for each expert, of what the ranks have told. Raises
        ConfigError if their notes about the tokens, if there are any, do not fit."""
        notes = {(*row,) for row in told[:, experts:].tolist()}
        if self.copies and len(notes) != len({first for first, _, _ in notes}):
            ranks = ", ".join(map(str, self.copies.ranks))
            raise ConfigError(
                f"MixtureOfExperts: ranks {ranks} ought to have the same tokens, as data= leaves "
                f"out the axis that they lie along, and here or beside them some have others: "
                f"{_WITH_PARTS}"
            )
        return told[:, :experts]

    def contradiction(self, group: ProcessGroup, is_same: bool | None) -> str:
        """Return what is wrong if the ranks of this group have, or have not, the same tokens, or
        "" if nothing is."""
        ranks = ", ".join(map(str, group.ranks))
        if is_same is True and self.parts is not None:
            return (
                f"ranks {ranks} were given the same tokens, and sequence= says that each has a "
                f"part: leave it out, and them out of data="
            )
        if is_same is True and len({*group.ranks} & {*self.tokens.ranks}) > 1:
            return (
                f"ranks {ranks} were given the same tokens, and data= says that each has tokens of "
                f"its own: leave the axis that they lie along out of data=, as in "
                f"data=mesh['dp', 'cp']"
            )
        if is_same is False and self.parts is None:
            return (
                f"ranks {ranks}, which have parts of other layers or, by data=, the same tokens, "
                f"were given different tokens, as sequence parallelism does: {_WITH_PARTS}"
            )
        return ""

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def shared(weight: Any, group: ProcessGroup | None) -> Any:
    """Return a weight that ranks with parts of one batch use, each for its own tokens."""
    return weight if group is None else regions.copy(weight, group)


_WITH_PARTS = "pass sequence=mesh['tp'], and data=mesh['dp', 'cp', 'tp'] with these ranks"


def _copies(
    mesh: Any, experts: ProcessGroup, data: Any, tokens: ProcessGroup
) -> ProcessGroup | None:
    """Return the ranks of the experts' axis that have this rank's tokens, or None if there are
    no others. Raises ConfigError if that is unknown."""
    if {*experts.ranks} <= {*tokens.ranks}:
        return None
    if isinstance(mesh, DeviceMesh) and isinstance(data, DeviceMesh) and mesh.is_part_with(data):
        found = mesh.alike(data)
        return found if found.world_size > 1 else None
    raise ConfigError(
        f"MixtureOfExperts: not all ranks that have experts, {', '.join(map(str, experts.ranks))}, "
        f"are among those who have tokens, {', '.join(map(str, tokens.ranks))}: pass axes of one "
        f"mesh, as mesh['ep'] and data=mesh['dp', 'cp'], which tell who has the same tokens"
    )


def are_same(counts: NDArray[np.int64], rows: NDArray[np.float64]) -> bool | None:
    """Return whether ranks have the same tokens, given their counts and some rows of each. None
    means that the rows do not tell, because they are all alike or not finite."""
    if (counts != counts[0]).any():
        return False
    tokens = rows[rows.any(-1)]
    if not np.isfinite(rows).all() or not (tokens != tokens[:1]).any():
        return None
    far = np.abs(rows - rows[0]).max() > _ROUNDED * np.abs(rows).max()
    return not far
