"""Masks of Hugging Face's transformers, as numbers that go through a model's layers.

transformers describes a mask by a function of two tokens' places, made of a few known ones. Those
of this rank's part say nothing of whole sequences, so what the functions mean is written down.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from torsh_runtime.errors import ConfigError

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
        return self.mask[:, _HEADER:]

    @classmethod
    def of(cls, where: str, module: Any, mask: Any, is_causal: bool | None) -> Look:
        """Read the mask a layer gets, or the layer's own attributes if it gets none."""
        if mask is None:
            causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            return cls(bool(causal), None, False)
        if mask.ndim != 2 or str(mask.dtype) != "torch.int64":
            refuse(where, f"a mask of its own (attention_mask of shape {tuple(mask.shape)})")
        causal, window = mask[0, :_HEADER].tolist()
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

    header = [int("causal_mask_function" in parts), window]
    if given is None:
        return torch.tensor([header], device=named.get("device"))
    rows = torch.tensor([header], device=given.device).expand(given.shape[0], _HEADER)
    return torch.cat([rows, given.long()], 1)


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
