"""Derives whole sequences from what ranks have of their masks and positions.

transformers describes a mask by a function of two tokens' places, made of a few known ones. Those
of this rank's part say nothing of whole sequences, so what the functions mean is written down, in
numbers that go through a model's layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.context.sequence import context_gather, of_rank

if TYPE_CHECKING:
    import torch

_KNOWN = {
    "add_offsets_to_mask_function",
    "and_masks",
    "bidirectional_mask_function",
    "causal_mask_function",
    "packed_sequence_mask_function",
    "remap_positions_for_packed_sequence",
    "sliding_window_bidirectional_overlay",
    "sliding_window_overlay",
}
"""Functions of transformers.masking_utils whose meaning Look has."""

_HEADER = 2


def refuse(where: str, what: str) -> NoReturn:
    """Raise a ConfigError which says that context parallelism cannot compute `what` of `where`."""
    raise ConfigError(
        f"{where} has {what}, which context parallelism cannot compute as one process does: use "
        f"another attn_implementation without it here, or a model without that"
    )


class Look(NamedTuple):
    """Tells which tokens a layer's tokens look at."""

    is_causal: bool
    window: int | None
    """Tokens less than this many places away; None: all."""
    is_ours: bool
    """True if the model's mask determines it, not only the layer."""
    mask: Any = None
    """The tensor it was read from."""

    @property
    def tokens(self) -> Any:
        """Return 1 for tokens and 0 for padding of this rank's part, (batch, tokens), or None."""
        if self.mask is None or self.mask.shape[1] == _HEADER:
            return None
        return _plain(self.mask)[:, _HEADER:]

    @classmethod
    def of(cls, where: str, module: Any, mask: Any, is_causal: bool | None) -> Look:
        """Read the mask a layer gets, or the layer's own attributes if it gets none."""
        if mask is None:
            causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            return cls(bool(causal), None, False)
        if mask.ndim != 2 or str(mask.dtype) != "torch.int64":
            refuse(where, f"a mask of its own (attention_mask of shape {tuple(mask.shape)})")
        causal, window = _plain(mask)[0, :_HEADER].tolist()
        return cls(bool(causal), window or None, True, mask)

    def window_beside(self, where: str, said: int | None, length: int) -> int | None:
        """Return the window for sequences of this length; `said` is the layer's own window.

        Raises ConfigError if the mask's window differs from it.
        """
        both = self.window, said
        own, other = (None if each is None or each >= length else each for each in both)
        if self.is_ours and other is not None and own != other:
            refuse(where, f"a window of {other} tokens beside a mask with {own}")
        return own if self.is_ours else other


def _plain(mask: Any) -> Any:
    return mask.plain() if hasattr(mask, "plain") else mask


def masked(*_: Any, **named: Any) -> Any:
    """Make a mask for transformers: a tensor that Look.of() understands.

    Raises ConfigError for one that has another meaning.
    """
    parts = _parts(named["mask_function"])
    if strange := parts - _KNOWN:
        refuse("the model", f"a mask by {', '.join(sorted(strange))}")
    given: torch.Tensor | None = named.get("attention_mask")
    own = _own_tokens(named)
    keys = int(named["kv_length"] if given is None else given.shape[-1])
    if keys != own or named.get("kv_offset") or named.get("q_offset"):
        refuse(
            "the model",
            f"{keys} keys for {own} queries (a cache that is not empty, or an attention_mask that "
            f"is not of this rank's part: cut batches by tr.context_batch())",
        )
    window = int(named.get("local_size") or 0)
    if "sliding_window_bidirectional_overlay" in parts:
        window += 1
    elif window and "sliding_window_overlay" not in parts:
        refuse("the model", f"a mask with {window} as its size")
    import torch

    from torsh_runtime.parallel.context.masks import unread

    header = [int("causal_mask_function" in parts), window]
    if given is None:
        return unread(torch.tensor([header], device=named.get("device")))
    rows = torch.tensor([header], device=given.device).expand(given.shape[0], _HEADER)
    return unread(torch.cat([rows, given.long()], 1))


def _own_tokens(named: dict[str, Any]) -> int:
    """Return the number of queries; older versions pass their places in the cache instead."""
    length = named.get("q_length")
    return int(named["cache_position"].shape[0] if length is None else length)


def _parts(function: Any) -> set[str]:
    """Return the names of the functions that a mask's function is composed of."""
    found = {function.__qualname__.split(".")[0]}
    for cell in function.__closure__ or ():
        inner = cell.cell_contents
        for each in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(each, FunctionType):
                found |= _parts(each)
    return found


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
