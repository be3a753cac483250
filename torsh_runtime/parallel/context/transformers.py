"""context_attention as the attention of Hugging Face's transformers."""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.context.attention import Method, context_attention
from torsh_runtime.parallel.context.masks import Look, masked, refuse
from torsh_runtime.parallel.context.positions import Sequences
from torsh_runtime.parallel.groups import group_of

_REFUSED = {
    "position_bias": "a bias by position",
    "head_mask": "a mask of heads",
    "alibi": "a bias by distance",
    "cu_seq_lens_q": "lengths of packed documents (cut the batch by tr.context_batch())",
}
"""Arguments for attention functions that are refused because ignoring them changes results."""
_TOKENS = "input_ids"
_POSITIONS = "context_positions"
"""The argument by which position_ids come to layers of models that do not pass them on."""


def register_context_attention(
    axis: Any, name: str = "torsh_context", method: Method = "ring", length: int | None = None
) -> str:
    """Let models of transformers attend by context_attention(), and return its name there.

    context_model() does that, and also checks that the model can do so. Each rank gives the model
    its part of a batch, as context_batch() returns it.

    Args:
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].
        name: The name of the attention implementation.
        method: See context_attention().
        length: The length of whole sequences; None is the sum over ranks.

    Raises:
        ConfigError: If transformers is older than 4.53. The model's first batch raises it, on all
            ranks, for anything that cannot be computed.

    Example:
        ```python
        name = tr.register_context_attention(mesh["cp"])
        model.set_attn_implementation(name)
        ```
    """
    from torsh_runtime.integrations.torch.compiling import leave_alone

    leave_alone(_Function.__call__)  # which looks at positions and masks
    leave_alone(_with_positions)
    function = _Function(group_of(axis), method, length)
    import_module("transformers").AttentionInterface.register(name, function)
    try:
        masks = import_module("transformers.masking_utils").AttentionMaskInterface
    except ImportError:
        raise ConfigError(
            "transformers has no AttentionMaskInterface, without which masks of models cannot be "
            "understood: install transformers 4.53 or newer"
        ) from None
    masks.register(name, masked)
    return name


def context_model(
    model: Any,
    axis: Any,
    method: Method = "ring",
    length: int | None = None,
    name: str = "torsh_context",
) -> None:
    """Let a model of transformers attend to sequences of which ranks of an axis have parts.

    It gets its batches from context_batch().

    Args:
        model: The model, which is changed in place.
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].
        method: See context_attention().
        length: The length of whole sequences; None is the sum over ranks.
        name: The name of the attention implementation.

    Raises:
        ConfigError: For a model whose attention cannot be replaced, or with other layers that need
            the whole sequence.

    Example:
        ```python
        tr.context_model(model, mesh["cp"])
        model(**tr.context_batch(batch, mesh["cp"])).loss.backward()
        ```
    """
    kind = type(model).__name__
    _check_model(kind, model)
    model.set_attn_implementation(register_context_attention(axis, name, method, length))
    for each in model.modules():
        used = (
            each.config._attn_implementation if hasattr(each, "set_attn_implementation") else name
        )
        if used != name:
            refuse(f"{type(each).__name__} of {kind}", f"{used!r} as its attention all the same")
    given = partial(_with_positions, kind, group_of(axis), _first_position(model))
    model.register_forward_pre_hook(given, with_kwargs=True)


def _check_model(kind: str, model: Any) -> None:
    if not hasattr(model, "set_attn_implementation"):
        raise ConfigError(
            f"{kind} has no set_attn_implementation(), as models of newer versions of transformers "
            f"have: let its layers call tr.context_attention()"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        refuse(kind, "attention between an encoder's sequence and a decoder's")
    for each in model.modules():
        can = getattr(each, "_can_set_attn_implementation", lambda: True)
        if not can():
            refuse(type(each).__name__, "an attention of its own, which cannot be replaced")
        main = getattr(each, "main_input_name", _TOKENS)
        if main != _TOKENS:
            refuse(f"{type(each).__name__} of {kind}", f"{main}, of which no sequence is cut")
    if not any(map(_attends, model.modules())):
        refuse(kind, "no attention that can be replaced")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        refuse(kind, "no position_ids, so that each rank would count from 0")


def _attends(module: Any) -> bool:
    """Return whether the module's forward() asks transformers for the attention function."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _first_position(model: Any) -> int:
    """Return the position of a sequence's first token.

    Models whose table of positions has a row for padding, as RoBERTa's, count from the row behind
    it.
    """
    tables = (getattr(each, "position_embeddings", None) for each in model.modules())
    paddings = (getattr(table, "padding_idx", None) for table in tables)
    return next((each + 1 for each in paddings if each is not None), 0)


def _with_positions(
    kind: str,
    group: ProcessGroup,
    first: int,
    model: Any,
    args: tuple[Any, ...],
    named: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a model's forward, with positions for all its layers."""
    signature = inspect.signature(model.forward)
    given = signature.bind_partial(*args, **named).arguments
    positions = given.get("position_ids")
    if positions is None:
        refuse(kind, "no position_ids, so that each rank would count from 0")
    if first:
        _check_first(kind, group, first, positions, given.get("attention_mask"))
    if any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
        named = {**named, _POSITIONS: positions}
    return args, named


def _check_first(kind: str, group: ProcessGroup, first: int, positions: Any, mask: Any) -> None:
    """Raise ConfigError, on all ranks, for tokens at positions below the model's first."""
    of_tokens = positions if mask is None else positions[mask != 0]
    lowest = int(of_tokens.min()) if of_tokens.numel() else first
    lowest = int(group.all_gather_numbers(np.array([lowest], np.int64)).min())
    if lowest < first:
        refuse(
            kind,
            f"positions from {first} on, and was given {lowest} (give tr.context_batch() the "
            f"position_ids of whole sequences, counted as the model counts them)",
        )


class _Function:
    """Computes attention when transformers calls it."""

    def __init__(self, group: ProcessGroup, method: Method, length: int | None) -> None:
        self._group, self._method = group, method
        self._sequences = Sequences(group, length)

    def __call__(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: float | None = None,
        dropout: float = 0.0,
        **named: Any,
    ) -> tuple[Any, None]:
        """Return (batch, tokens, heads, size) and no weights, as transformers' own functions do."""
        where = type(module).__name__
        self._check(where, dropout, named)
        look = Look.of(where, module, attention_mask, named.get("is_causal"))
        positions = named.get("position_ids")
        positions = named.get(_POSITIONS) if positions is None else positions
        whole = self._sequences.known(where, positions, look, query.shape[2])
        whole.check_config(where, getattr(module, "config", None))
        mixed = context_attention(
            query,
            key,
            value,
            self._group,
            look.is_causal,
            self._method,
            whole.documents,
            whole.length,
            scaling,
            look.window_beside(where, named.get("sliding_window"), whole.length),
            named.get("softcap"),
            named.get("s_aux"),
            whole.tokens,
        )
        return mixed.transpose(1, 2).contiguous(), None

    def _check(self, where: str, dropout: float, named: dict[str, Any]) -> None:
        for option, what in _REFUSED.items():
            if named.get(option) is not None:
                refuse(where, f"{what} ({option})")
        if dropout:
            refuse(where, f"dropout of weights ({dropout}; set the config's to 0)")
