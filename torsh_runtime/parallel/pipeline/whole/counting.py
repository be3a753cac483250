"""Finds out of which elements a model's own loss is the mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torsh_runtime.parallel.pipeline.batches import IGNORED, Call
from torsh_runtime.parallel.pipeline.giving import loss_of

Rule = Callable[[torch.Tensor], float]
_NEAR = {torch.float64: 1e-12, torch.float32: 1e-6}
_NEAR_OTHERWISE = 1e-3


def counted_by(model: Callable[..., Any], example: Call) -> Callable[[Call], float] | None:
    """Return a function that counts the elements whose mean is the model's loss of a microbatch.

    Microbatches are like this example. The rule is the one by which the loss of two rows follows
    from the losses of each. Returns None if there is no such rule, or it cannot be determined.
    """
    labels = example.named.get("labels")
    if not isinstance(labels, torch.Tensor) or not labels.ndim:
        return None
    rules = _rules(labels)
    if len(rules) == 1:
        return _of_labels(*rules)
    rows = [_row(example, 0, 0), _row(example, min(1, len(labels) - 1), labels.shape[1] // 2)]
    both = Call((), {name: _joined([row.named[name] for row in rows]) for name in example.named})
    one, other, found = (loss_of(model(*each.arguments, **each.named)) for each in (*rows, both))
    if one is None or other is None or found is None:
        return None
    return _fitting(rules, [row.named["labels"] for row in rows], [one, other, found], model)


def _fitting(
    rules: list[Rule], labels: list[torch.Tensor], losses: list[torch.Tensor], model: Any
) -> Callable[[Call], float] | None:
    """Return the only rule by which the last of these losses follows from the others, or None."""
    one, other, found = (float(each.detach()) for each in losses)
    near = _NEAR.get(losses[-1].dtype, _NEAR_OTHERWISE) * abs(found)
    apart: dict[float, tuple[float, Rule]] = {}
    for rule in rules:
        counts = [rule(each) for each in labels]
        share = counts[0] / max(1.0, sum(counts))
        apart.setdefault(share, (abs(share * one + (1 - share) * other - found), rule))
    fitting = [rule for distance, rule in apart.values() if distance <= near]
    told = _TOLD.get(str(getattr(model, "loss_type", "")))
    if len(fitting) > 1:  # losses are too much alike to tell
        fitting = [rule for rule in fitting if rule is told]
    return _of_labels(fitting[0]) if fitting else None


def _of_labels(rule: Rule) -> Callable[[Call], float]:
    return lambda call: rule(call.named["labels"])


def _rules(labels: torch.Tensor) -> list[Rule]:
    if labels.is_floating_point():
        return [_of_rows]
    return [_of_tokens] if labels.ndim == 1 else [_of_next_tokens, _of_tokens, _of_rows]


def _of_next_tokens(labels: torch.Tensor) -> float:
    return float((labels[..., 1:] != IGNORED).sum())


def _of_tokens(labels: torch.Tensor) -> float:
    return float((labels != IGNORED).sum())


def _of_rows(labels: torch.Tensor) -> float:
    return float(len(labels))


def _row(example: Call, number: int, ignored: int) -> Call:
    """Return one row of the example, with the first `ignored` labels left out."""
    rows = len(example.named["labels"])
    named = {
        name: each[number : number + 1] if _has_rows(each, rows) else each
        for name, each in example.named.items()
    }
    named["labels"] = named["labels"].clone()
    named["labels"][:, :ignored] = IGNORED
    return Call((), named)


def _has_rows(value: Any, rows: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == rows


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], torch.Tensor) and parts[0].ndim and len(parts[0]) == 1:
        return torch.cat(parts)
    return parts[0]


_TOLD = {
    "ForCausalLM": _of_next_tokens,
    "ForMaskedLM": _of_tokens,
    "ForConditionalGeneration": _of_tokens,
    "ForTokenClassification": _of_tokens,
}
"""Rules for the losses of transformers, by their type."""
