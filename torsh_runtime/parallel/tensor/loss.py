"""Cross-entropy of scores of which each rank has those of some classes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.operations import Operation
from torsh_runtime.numpy_or_cupy import array_module
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.agreement import digest
from torsh_runtime.parallel.regions.arrays import Array, empty
from torsh_runtime.parallel.tensor.axis import Axis, axis_of
from torsh_runtime.parallel.tensor.cuts import cuts

_REDUCTIONS = ("mean", "sum", "none")


def vocab_parallel_cross_entropy(
    input: Any,
    target: Any,
    mesh: Any = None,
    *,
    num_classes: int | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return -log softmax at the target class, although no rank has all scores.

    The result is equal on all ranks. They exchange four numbers for each target.

    Args:
        input: Unnormalised scores (…, own classes), as a Column layer leaves them.
        target: Integers (…), the same on all ranks.
        mesh: The ranks, as parallelize() takes them.
        num_classes: The number of classes of all ranks, cut as a Column layer cuts; None: the ranks
            exchange how many they have, which is one exchange more.
        ignore_index: The target that does not count.
        reduction: "mean", "sum" or "none".
        label_smoothing: As nn.functional.cross_entropy.

    Raises:
        ConfigError: For a different number of own classes or a different shape of targets, and for
            whole scores where num_classes does not tell.
        ValueError: For targets that are no class, and for an unknown reduction.
        CommError: If an exchange among the ranks fails.

    Example:
        ```python
        scores = head(hidden)  # a Column layer: (batch, length, own classes)
        loss = tr.vocab_parallel_cross_entropy(scores, target, mesh, num_classes=32000)
        loss.backward()
        ```
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is one of {', '.join(_REDUCTIONS)}, not {reduction!r}")
    axis = axis_of(mesh)
    own = int(input.shape[-1])
    start, end, size = _own_classes(axis, input, num_classes)
    if end - start != own or tuple(target.shape) != tuple(input.shape[:-1]):
        raise ConfigError(
            f"scores of shape {tuple(input.shape)} and targets of shape {tuple(target.shape)} came "
            f"to rank {axis.index} of the axis {axis.name!r}, which has {end - start} of {size} "
            f"classes: both are (…) but for the classes"
        )
    classes = target.data if hasattr(target, "requires_grad") else target
    kept = classes != ignore_index
    _check_classes(classes, kept, size, ignore_index)
    targets = _module(classes).where(kept, classes, -1)
    loss = _CrossEntropy(axis.group, targets, start, size, label_smoothing)
    losses = regions.applied(input, loss)
    if reduction == "none":
        return losses
    return losses.sum() / (kept.sum() if reduction == "mean" else 1)


def _own_classes(axis: Axis, input: Any, num_classes: int | None) -> tuple[int, int, int]:
    """Return this rank's first class, the one after its last, and the number of all. Raises
    ConfigError on all ranks if num_classes is None and they all have the same scores."""
    if num_classes is None:
        own = [int(input.shape[-1]), _digest_of_row(input.data)]
        told = axis.group.all_gather_numbers(np.array(own, np.int64))
        if axis.size > 1 and own[1] and (told == told[0]).all():
            raise ConfigError(
                f"all ranks of the axis {axis.name!r} have the same scores of {own[0]} classes: "
                f"pass those of each rank's own classes, or take cross_entropy() of these"
            )
        ends = tuple(accumulate(told[:, 0].tolist(), initial=0))
    else:
        ends = cuts(num_classes, axis.size)
    return ends[axis.index], ends[axis.index + 1], ends[-1]


def _digest_of_row(scores: Array) -> int:
    """Return the digest of the first row, or 0 if its numbers are equal, as before a model has
    learnt."""
    row = scores.reshape(-1, scores.shape[-1])[:1]
    return digest(row) if bool((row != row[..., :1]).any()) else 0


def _check_classes(classes: Array, kept: Array, size: int, ignore_index: int) -> None:
    wrong = (kept & ((classes < 0) | (classes >= size))).any()
    if getattr(getattr(classes, "device", None), "type", "cpu") != "cpu":
        sys.modules["torch"]._assert_async(~wrong)  # what it finds, nobody waits for
    elif bool(wrong):
        raise ValueError(
            f"targets are from 0 to {size - 1} or ignore_index ({ignore_index}), and here from "
            f"{int(classes.min())} to {int(classes.max())}"
        )


class _CrossEntropy(Operation):
    """The losses of rows of scores; it keeps what its adjoint needs."""

    def __init__(
        self, group: ProcessGroup, targets: Array, start: int, classes: int, smoothing: float
    ) -> None:
        """Create the loss. targets: one for each row, of `classes`, below 0 for ignored rows.
        start: this rank's first class."""
        self._group, self._targets, self._start = group, targets, start
        self._classes, self._smoothing = classes, smoothing

    def __call__(self, array: Array) -> Array:
        xp, scores = _module(array), _wide(array).reshape(-1, array.shape[-1])
        places = self._targets.reshape(-1) - self._start
        here = (places >= 0) & (places < scores.shape[1]) & (self._targets.reshape(-1) >= 0)
        self._chosen = xp.arange(len(scores)), xp.where(here, places, 0)
        self._here, self._shape, self._dtype = here, array.shape, array.dtype
        self._loss_dtype = scores.dtype if _is_mixed(array) else array.dtype
        highest = xp.amax(scores, 1)
        self._powers = xp.exp(scores - xp.where(xp.isfinite(highest), highest, 0.0)[:, None])
        own = xp.where(here, scores[self._chosen], 0.0)
        spread = scores.sum(1) if self._smoothing else xp.zeros_like(own)
        return self._losses(xp, highest, xp.stack([highest, self._powers.sum(1), own, spread]))

    def _losses(self, xp: Any, highest: Array, own: Array) -> Array:
        everyone = empty(own, (self._group.world_size, *own.shape))
        self._group.all_gather_into_tensor(everyone, own)
        top = xp.amax(everyone[:, 0], 0)
        total = (everyone[:, 1] * xp.exp(everyone[:, 0] - top)).sum(0)
        self._scale = xp.exp(highest - top) / total
        losses = xp.log(total) + top - (1 - self._smoothing) * everyone[:, 2].sum(0)
        if self._smoothing:
            losses -= self._smoothing / self._classes * everyone[:, 3].sum(0)
        counted = xp.where(self._targets.reshape(-1) >= 0, losses, 0.0)  # others may be infinite
        return _like(counted.reshape(self._shape[:-1]), self._loss_dtype)

    @property
    def adjoint(self) -> Operation:
        return _Backward(self._gradient)

    def _gradient(self, array: Array) -> Array:
        xp = _module(array)
        weights = xp.where(self._targets.reshape(-1) >= 0, _wide(array).reshape(-1), 0.0)
        found = self._powers * self._scale[:, None]
        if self._smoothing:
            found -= self._smoothing / self._classes
        found[self._chosen] -= xp.where(self._here, 1 - self._smoothing, 0.0)
        found *= weights[:, None]
        return _like(found.reshape(self._shape), self._dtype)


class _Backward(Operation):
    def __init__(self, gradient: Callable[[Array], Array]) -> None:
        self._gradient = gradient

    def __call__(self, array: Array) -> Array:
        return self._gradient(array)

    @property
    def adjoint(self) -> Operation:
        raise RuntimeError("the gradient of vocab_parallel_cross_entropy() has no gradient")


def _module(array: Array) -> Any:
    """Return the module whose functions compute with the array."""
    return sys.modules["torch"] if hasattr(array, "new_empty") else array_module(array)


def _wide(array: Array) -> Array:
    """Return the array with at least 32 bits per number."""
    if array.dtype.itemsize > 2:
        return array
    return array.float() if hasattr(array, "new_empty") else array.astype("float32")


def _is_mixed(array: Array) -> bool:
    """Return whether torch computes losses of it in 32 bits, as autocast does."""
    if not hasattr(array, "new_empty"):
        return False
    return bool(sys.modules["torch"].is_autocast_enabled(array.device.type))


def _like(array: Array, dtype: Any) -> Array:
    """Cast the array to the dtype in torch, whose results have the dtype of their operands."""
    return array.to(dtype) if hasattr(array, "new_empty") else array
