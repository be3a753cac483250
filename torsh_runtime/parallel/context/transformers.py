"""Lets models of Hugging Face's transformers attend by context_attention().

Batches for language models are cut along their sequences.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.context.attention import Method, context_attention
from torsh_runtime.parallel.context.positions import Look, Sequences, masked, refuse
from torsh_runtime.parallel.context.sequence import context_shard
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.operations import functions_of, indices, joined

_IGNORED = -100
"""The label where there is nothing to learn."""

_OF_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def context_batch(batch: Mapping[str, Any], axis: Any, shift: bool = True) -> dict[str, Any]:
    """Return this rank's part of a batch that all ranks of an axis have whole.

    The batch and the result are arguments of transformers' models. They hold torch's tensors, or
    arrays. Labels are shifted before they are cut, unless `shift` is False, and are returned as
    shift_labels, (rows, own tokens), -100 where there is nothing to learn. For the loss of models
    that take shift_labels, `labels` and num_items_in_batch are returned too. The latter makes the
    mean of all ranks' losses and gradients that of one process. They are left out without `shift`;
    context_loss() serves both.

    Args:
        batch: input_ids (rows, tokens), or inputs_embeds; and optionally labels, position_ids
            (which begin anew with each packed document), attention_mask (1 for tokens, 0 for
            padding), cu_seq_lens_q (of documents packed into one row), and others, which are cut if
            they have as many rows and tokens.
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].
        shift: Whether to shift the labels; False if they already are, or should not be.

    Returns:
        This rank's part of each, and always position_ids.

    Raises:
        ConfigError: For batches without tokens, with masks that are not of tokens, with lengths of
            documents that do not fit, and as context_shard().

    Example:
        ```python
        output = model(**tr.context_batch(batch, mesh["cp"]))
        output.loss.backward()
        ```
    """
    found = {name: each for name, each in batch.items() if name not in _OF_PACKED}
    tokens = found.get("input_ids", found.get("inputs_embeds"))
    if tokens is None:
        raise ConfigError(
            f"the batch has {', '.join(batch)} and neither input_ids nor inputs_embeds"
        )
    rows, length = tokens.shape[:2]
    found["position_ids"] = _positions(batch, tokens)
    mask = found.pop("attention_mask", None)
    if mask is not None:
        if tuple(mask.shape) != (rows, length):
            raise ConfigError(
                f"attention_mask of shape {tuple(mask.shape)}: give 1 for tokens and 0 for "
                f"padding, ({rows}, {length})"
            )
        if not bool((mask != 0).all()):
            found["attention_mask"] = mask
    labels, ranks = found.pop("labels", None), group_of(axis).world_size
    own = {name: _part(each, rows, length, axis) for name, each in found.items()}
    if labels is not None:
        whole = _shifted(labels) if shift else labels
        own["shift_labels"] = context_shard(whole, axis)
        if shift:
            count = found.get("num_items_in_batch", (whole != _IGNORED).sum())
            own["num_items_in_batch"] = count / ranks
            own["labels"] = own["shift_labels"] * 0 + _IGNORED
    return own


def _positions(batch: Mapping[str, Any], tokens: Any) -> Any:
    """Return the positions of whole sequences, (rows, tokens)."""
    rows, length = tokens.shape[:2]
    given, cuts = batch.get("position_ids"), batch.get("cu_seq_lens_q")
    if given is not None:
        return (
            given
            if given.shape[0] == rows
            else functions_of(given).broadcast_to(given, (rows, length))
        )
    places = np.arange(length)
    if cuts is not None:
        starts = np.asarray(cuts.cpu() if hasattr(cuts, "cpu") else cuts)
        if rows != 1 or starts[0] or starts[-1] != length:
            raise ConfigError(
                f"cu_seq_lens_q {starts.tolist()} are not cumulative lengths from 0 to {length} of "
                f"documents in one row, of which the batch has {rows}"
            )
        places = places - starts[np.searchsorted(starts, places, "right") - 1]
    whole = np.broadcast_to(places, (rows, length)).copy()
    if not hasattr(tokens, "new_empty"):
        return whole
    return indices(whole, tokens)


def _part(each: Any, rows: int, length: int, axis: Any) -> Any:
    """Return this rank's tokens of a value that has one for each token, else the value."""
    shape = tuple(getattr(each, "shape", ()))
    return context_shard(each, axis) if shape[:2] == (rows, length) else each


def _shifted(labels: Any) -> Any:
    """Return each token's next label."""
    return joined([labels[:, 1:], labels[:, :1] * 0 + _IGNORED], 1)


def context_loss(scores: Any, labels: Any, axis: Any) -> Any:
    """Return the cross entropy of this rank's tokens, scaled so that ranks can average it.

    The mean over the ranks of the axis, of losses and of gradients, is the mean over all tokens of
    one process.

    Args:
        scores: A tensor of torch (rows, own tokens, classes).
        labels: Integers (rows, own tokens), -100 where there is nothing to learn, as
            context_batch()'s shift_labels.
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].

    Raises:
        ConfigError: If no rank has a label.
        CommError: If the exchange among the ranks fails.

    Example:
        ```python
        own = tr.context_batch(batch, mesh["cp"])
        labels = own.pop("shift_labels")
        scores = model(input_ids=own["input_ids"], position_ids=own["position_ids"]).logits
        tr.context_loss(scores, labels, mesh["cp"]).backward()
        ```
    """
    import torch

    group = group_of(axis)
    count = group.all_gather_numbers(np.array([int((labels != _IGNORED).sum())], np.int64)).sum()
    if not count:
        raise ConfigError(
            f"no token of the batch has a label, on any of {group.world_size} ranks: a mean over "
            f"none is no number, so leave this batch out"
        )
    total = torch.nn.functional.cross_entropy(
        scores.flatten(0, -2), labels.flatten(), ignore_index=_IGNORED, reduction="sum"
    )
    return total * (group.world_size / int(count))


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
            "understood: install transformers 4.57 or newer"
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
            refuse(f"{type(each).__name__} of {kind}", f"an input without a sequence ({main})")
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
