"""Defines the loss functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torsh_runtime.nn.activations import log_normalised
from torsh_runtime.nn.arrays import Array, array_module
from torsh_runtime.nn.graph import derived, operand

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor

_REDUCTIONS = ("mean", "sum", "none")


def _check_reduction(name: str) -> None:
    if name not in _REDUCTIONS:
        raise ValueError(f"reduction is one of {', '.join(_REDUCTIONS)}, not {name!r}")


def mse_loss(input: Any, target: Any, *, reduction: str = "mean") -> Tensor:
    """Return the squared difference of two tensors of one shape.

    Args:
        input: A tensor or an array.
        target: A tensor or an array.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: For shapes that differ, and for an unknown reduction.

    Example:
        ```python
        loss = tr.nn.functional.mse_loss(model(batch), target)
        ```
    """
    _check_reduction(reduction)
    if operand(input).shape != operand(target).shape:
        raise ValueError(f"mse_loss: {operand(input).shape} and {operand(target).shape} do not fit")
    difference = operand(input) - operand(target)
    count = difference.size if reduction == "mean" else 1
    result = difference * difference
    if reduction != "none":
        result = result.sum() / count
    factor = 2 / count if count else math.nan
    return derived(
        result,
        (input, lambda g: difference * (g * factor)),
        (target, lambda g: difference * (g * -factor)),
    )


def cross_entropy(
    input: Any,
    target: Any,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return -log softmax(input) at the target class.

    Args:
        input: Unnormalised scores (classes), (N, classes) or (N, classes, …).
        target: Integers of that shape without the classes.
        ignore_index: The target that does not count; "mean" is over the others, NaN if there are
            none.
        reduction: "mean", "sum" or "none".
        label_smoothing: The part of each target that is spread evenly over all classes.

    Raises:
        ValueError: For targets that are no class, for shapes that do not fit, and for an unknown
            reduction.
        TypeError: For targets that are no integers.

    Example:
        ```python
        loss = tr.nn.functional.cross_entropy(tr.nn.randn(2, 10), tr.nn.tensor([3, 1]))
        ```
    """
    _check_reduction(reduction)
    value, classes_at = operand(input), 1 if operand(input).ndim > 1 else 0
    xp = array_module(value)
    shape = tuple(size for axis, size in enumerate(value.shape) if axis != classes_at)
    rows = xp.moveaxis(value, classes_at, -1).reshape(-1, value.shape[classes_at])
    kept, chosen = _targets(operand(target), shape, rows.shape[1], ignore_index)
    logs = log_normalised(rows, 1)
    losses = (label_smoothing - 1) * logs[xp.arange(len(rows)), chosen]
    if label_smoothing:
        losses -= label_smoothing * logs.mean(axis=1)
    losses = xp.where(kept, losses, 0)  # ignored losses may be infinite
    count = kept.sum() if reduction == "mean" else 1

    def pullback(g: Array) -> Array:
        weights = (xp.broadcast_to(g, shape).reshape(-1) * kept / max(count, 1)).astype(logs.dtype)
        own = xp.exp(logs)
        own -= label_smoothing / logs.shape[1]
        own[xp.arange(len(logs)), chosen] -= 1 - label_smoothing
        own *= weights[:, None]
        ordered = xp.moveaxis(own.reshape(*shape, logs.shape[1]), -1, classes_at)
        return xp.ascontiguousarray(ordered)

    result = losses.reshape(shape) if reduction == "none" else losses.sum() / count
    return derived(xp.asarray(result).astype(logs.dtype), (input, pullback))


def _targets(
    target: Array, shape: tuple[int, ...], classes: int, ignore_index: int
) -> tuple[Array, Array]:
    """Return which targets count, and all targets as valid indices."""
    if target.shape != shape:
        raise ValueError(f"cross_entropy: the targets' shape is {target.shape} instead of {shape}")
    if target.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: targets are classes as integers, not {target.dtype}")
    flat = target.reshape(-1)
    kept = flat != ignore_index
    chosen = array_module(flat).where(kept, flat, 0)
    if flat.size and not 0 <= int(chosen.min()) <= int(chosen.max()) < classes:
        raise ValueError(
            f"cross_entropy: targets are from 0 to {classes - 1} or ignore_index ({ignore_index}), "
            f"and here from {int(chosen.min())} to {int(chosen.max())}"
        )
    return kept, chosen
