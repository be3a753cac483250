"""Derives whole sequences from the positions that ranks have of them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.parallel.context.masks import Look, refuse
from torsh_runtime.parallel.context.order import of_rank
from torsh_runtime.parallel.context.sequence import context_gather

if TYPE_CHECKING:
    import torch

_WHOLE_LAYERS = ("full_attention", "sliding_attention", "attention", "hybrid_sliding")
"""Kinds of layers, by config.layer_types, that mix tokens by attention functions only."""


class Whole(NamedTuple):
    """Describes the whole sequences of all ranks."""

    length: int
    positions: NDArray[np.int64]
    """(rows, length); one row for all that are alike."""
    tokens: NDArray[np.int64] | None
    """1 for tokens and 0 for padding; None: no padding."""
    documents: Sequence[Sequence[int]] | None
    ranks: int

    def check_config(self, where: str, config: Any) -> None:
        """Raise ConfigError if a model mixes whole sequences in other ways than by attention."""
        kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
        for kind in kinds or ():
            if kind not in _WHOLE_LAYERS:
                refuse(f"the model of {where}", f"layers of the kind {kind!r}")
        if getattr(config, "output_router_logits", False):
            refuse(f"the model of {where}", "a loss of its router (output_router_logits)")
        for rope in _rotations(config):
            kind = rope.get("rope_type") or rope.get("type")
            if kind in ("dynamic", "longrope"):
                self._check_rotation(where, config, kind, rope)

    def _check_rotation(self, where: str, config: Any, kind: str, rope: dict[str, Any]) -> None:
        """Raise ConfigError if a rotation that depends on the largest position differs between
        ranks.
        """
        original = "original_max_position_embeddings"
        limit = rope.get(original) or getattr(config, original, None)
        limit = limit or config.max_position_embeddings
        parts = [of_rank(self.positions, 1, self.length, self.ranks, r) for r in range(self.ranks)]
        longest = [int(part.max()) + 1 for part in parts]
        are_alike = all(each > limit for each in longest) or max(longest) <= limit
        if not are_alike or (kind == "dynamic" and max(longest) > limit):
            refuse(
                f"the model of {where}",
                f"rotations ({kind}) that depend on the longest position, {longest} on its ranks "
                f"beside {limit}",
            )


def _rotations(config: Any) -> list[dict[str, Any]]:
    """Return the parameters of all rotations that the layers use."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    inner = [each for each in found.values() if isinstance(each, dict)]
    return inner or [found]


class Sequences:
    """Caches the whole sequences of a group's ranks. All layers of a model ask for them; the other
    ranks are asked once.
    """

    def __init__(self, group: ProcessGroup, length: int | None) -> None:
        self._group, self._length = group, length
        self._asked: list[tuple[Any, int]] = []
        self._known: Whole | None = None

    def known(self, where: str, positions: Any, look: Look, own: int) -> Whole:
        """Return the sequences of which this rank has `own` tokens.

        Raises ConfigError, on all ranks, for positions that are not those of parts of sequences.
        """
        tensors = [each for each in (positions, look.mask) if each is not None]
        if self._known is None or not self._is_asked_again(tensors):
            self._known = self._gathered(where, positions, look, own)
            self._asked = [(weakref.ref(each), each._version) for each in tensors]
        return self._known

    def _is_asked_again(self, tensors: Sequence[Any]) -> bool:
        """Return whether these tensors are those of the last call, with the same elements."""
        return len(tensors) == len(self._asked) and all(
            last() is each and version == each._version
            for each, (last, version) in zip(tensors, self._asked, strict=True)
        )

    def _gathered(self, where: str, positions: Any, look: Look, own: int) -> Whole:
        rank_has = [own, positions is not None and positions.ndim == 2, look.tokens is not None]
        told = self._group.all_gather_numbers(np.array(rank_has, np.int64))
        if not told[:, 1].all():
            refuse(where, "no position_ids of shape (batch, tokens)")
        length = self._length or int(told[:, 0].sum())
        places, tokens = self._whole(positions, length), None
        if told[:, 2].any():
            import torch

            mask = torch.ones_like(positions) if look.tokens is None else look.tokens
            tokens = self._whole(mask, length)
        cuts = _documents(where, places, tokens)
        if tokens is not None and tokens.all():
            tokens = None
        return Whole(length, places, tokens, cuts, self._group.world_size)

    def _whole(self, own: torch.Tensor, length: int) -> NDArray[np.int64]:
        import torch

        with torch.no_grad():
            whole = context_gather(own.long().contiguous(), self._group, length)
        return np.array(whole.cpu())


def _documents(
    where: str, positions: NDArray[np.int64], tokens: NDArray[np.int64] | None
) -> Sequence[Sequence[int]] | None:
    """Return each row's cumulative lengths of documents, which begin where positions restart.

    Returns None if no position restarts, or if there is padding.
    """
    rows, length = positions.shape
    begins = np.diff(positions, axis=1) != 1
    if tokens is not None:
        both = (tokens[:, 1:] != 0) & (tokens[:, :-1] != 0)
        if (begins & both).any():
            row, at = np.argwhere(begins & both)[0].tolist()
            _misplaced(where, positions[row % rows], at)
        return None
    found = []
    for row, steps in zip(positions, begins, strict=True):
        cuts = np.flatnonzero(steps) + 1
        if (row[cuts] != row[0]).any():
            _misplaced(where, row, int(cuts[row[cuts] != row[0]][0]) - 1)
        found.append([0, *cuts.tolist(), length])
    return found if begins.any() else None


def _misplaced(where: str, row: NDArray[np.int64], at: int) -> None:
    refuse(
        where,
        f"position_ids that go from {row[at]} to {row[at + 1]} between the tokens {at} and "
        f"{at + 1} of a whole sequence (give each rank its part by tr.context_batch(); beside an "
        f"attention_mask there are no packed documents)",
    )
