"""Cuts batches for language models along their sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.context.sequence import context_shard
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.operations import functions_of, joined

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
    torch = functions_of(tokens)
    return torch.from_numpy(whole).to(tokens.device)


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
