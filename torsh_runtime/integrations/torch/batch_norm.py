"""Normalises batches over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.torch.fused_batch_norm import Gathered, normalise
from torsh_runtime.parallel.groups import group_of

Tensor = torch.Tensor


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Normalises like BatchNorm1d, 2d or 3d, with the statistics of all ranks' batches in training.

    The batches may be of different sizes, and empty; if all are empty, the running statistics are
    unchanged. It is like torch's class of this name, and works on CPUs, too.

    Raises:
        ConfigError: On all ranks, in training, if some need gradients of their input and others are
            within no_grad().
        ValueError: For an input of fewer than two dimensions.

    Example:
        ```python
        model = tr.SyncBatchNorm.convert_sync_batchnorm(model)
        model = tr.DistributedDataParallel(model)
        ```
    """

    communicates_in_backward = True
    """True for layers with collectives in their backward pass; see DistributedDataParallel."""

    def __init__(self, num_features: int, *arguments: Any, process_group: Any = None, **named: Any):
        """Create the layer.

        Args:
            num_features: The number of channels, the size of the input's second dimension.
            *arguments: As torch.nn.BatchNorm1d.
            process_group: The ranks; None is the default group when the layer is first used.
            **named: As torch.nn.BatchNorm1d.
        """
        super().__init__(num_features, *arguments, **named)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"an input of shape {tuple(input.shape)} has no batches of channels")

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the input (batch, num_features, ...) over all dimensions but the second."""
        self._check_input_dim(input)
        group = group_of(self.process_group) if self.training else None
        if group is None or group.world_size == 1:
            plain: Tensor = super().forward(input)
            return plain
        records = torch.is_grad_enabled()
        tells = (records and input.requires_grad, records)
        if input.device.type != "cpu":
            return self._normalised_on_device(input, tells, group)
        whole = _statistics(input, *tells, group)
        if whole.wants_gradient and not input.requires_grad:
            input = input.detach().requires_grad_()  # others need this rank in the backward pass
        apply: Any = _Normalise.apply
        normalised = apply(input, whole, self.eps, group)
        if self.track_running_stats and self.running_mean is not None:
            self._track(whole.mean, whole.variance, whole.total)
        shape = (1, -1, *([1] * (input.dim() - 2)))
        scaled: Tensor = normalised
        if self.affine:
            scaled = normalised * self.weight.view(shape) + self.bias.view(shape)
        return scaled.to(input.dtype)

    def _normalised_on_device(
        self, input: Tensor, tells: tuple[bool, bool], group: ProcessGroup
    ) -> Tensor:
        with torch.no_grad():
            gathered = Gathered.of(input, self.eps, tells, group)
            if _is_gradient_wanted(gathered.heads) and not input.requires_grad:
                input = input.detach().requires_grad_()
            mean, scale = self._joined(gathered)
        affine = (self.weight, self.bias) if self.affine else (None, None)
        return normalise(input, affine, (mean, scale, gathered.counts), group)

    def _joined(self, gathered: Gathered) -> tuple[Tensor, Tensor]:
        """Return mean and scale over all ranks, and update the running statistics."""
        mean, dtype = self.running_mean, gathered.means.dtype
        running = (mean, self.running_var) if self.track_running_stats else (None, None)
        is_tracking = running[0] is not None
        is_usual = self.momentum is not None and mean is not None and mean.dtype is dtype
        if gathered.is_regular and (is_usual or not is_tracking):
            if is_tracking and self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
            return gathered.joined_by_torch(running, self.momentum or 0.0, self.eps)
        whole, variance = gathered.joined(self.eps)
        if is_tracking:
            self._track(whole, variance, gathered.total)
        return whole, torch.rsqrt(variance + self.eps)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, total: float) -> None:
        if not total:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor: Any = self.momentum
        if factor is None:  # the mean over all batches
            factor = 1.0 / self.num_batches_tracked.to(torch.float64)
        unbiased = variance * (total / max(total - 1, 1))
        for running, found in ((self.running_mean, mean), (self.running_var, unbiased)):
            wide = torch.promote_types(running.dtype, torch.float32)
            weight = factor.to(wide) if isinstance(factor, Tensor) else factor
            running.copy_(running.to(wide).lerp_(found.to(running.dtype).to(wide), weight))

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Replace each BatchNorm in the model, keep its parameters, and return the model.

        Args:
            module: The model, or a BatchNorm.
            process_group: The ranks; None is the default group when the layers are first used.

        Example:
            ```python
            model = tr.SyncBatchNorm.convert_sync_batchnorm(model)
            ```
        """
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, cls):
            return cls._from(module, process_group)
        for name, child in module.named_children():
            setattr(module, name, cls.convert_sync_batchnorm(child, process_group))
        return module

    @classmethod
    def _from(cls, plain: nn.modules.batchnorm._BatchNorm, process_group: Any) -> SyncBatchNorm:
        options = (plain.eps, plain.momentum, plain.affine, plain.track_running_stats)
        made = cls(plain.num_features, *options, process_group=process_group)
        if plain.affine:
            made.weight, made.bias = plain.weight, plain.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(made, name, getattr(plain, name))
        made.training = plain.training
        return made


class _Statistics(NamedTuple):
    """Holds statistics over the values of all ranks."""

    total: float
    mean: Tensor
    variance: Tensor
    wants_gradient: bool
    """True if some rank's input requires a gradient, so that all take part in the backward pass."""


def _working(input: Tensor) -> Tensor:
    return input.double() if input.dtype is torch.float64 else input.float()


def _dims(input: Tensor) -> list[int]:
    """Return all dimensions but the second."""
    return [0, *range(2, input.dim())]


@torch.no_grad()
def _statistics(
    input: Tensor, wants_gradient: bool, records: bool, group: ProcessGroup
) -> _Statistics:
    """Return the statistics over all ranks' values.

    They are computed from each rank's own mean and variance, which loses less to cancellation than
    sums of squares (Chan et al., 1979). Raises ConfigError on all ranks if some require gradients
    and others record none.
    """
    values = _working(input)
    count = input.numel() // input.shape[1]
    variance, mean = (
        torch.var_mean(values, _dims(input), correction=0)
        if count
        else (values.new_zeros(input.shape[1]), values.new_zeros(input.shape[1]))
    )
    own = torch.cat([mean.new_tensor([count, wants_gradient, records]), mean, variance])
    rows = own.new_empty(group.world_size, own.numel())
    group.all_gather_into_tensor(rows, own)
    heads: list[list[float]] = rows[:, :3].tolist()
    counts, (means, variances) = rows[:, :1], rows[:, 3:].chunk(2, dim=1)
    total = sum(head[0] for head in heads)
    divisor = max(total, 1.0)  # without any values the mean is 0
    whole = (means * counts).sum(0) / divisor
    spread = ((variances + (means - whole) ** 2) * counts).sum(0) / divisor
    return _Statistics(total, whole, spread, _is_gradient_wanted(heads))


def _is_gradient_wanted(heads: Sequence[Sequence[float]]) -> bool:
    """Return whether some rank requires a gradient. A rank's head has the number of its values,
    whether it requires a gradient, and whether it records any."""
    silent = [rank for rank, (_, _, records) in enumerate(heads) if not records]
    is_wanted = any(wants for _, wants, _ in heads)
    if silent and is_wanted:
        raise ConfigError(
            f"SyncBatchNorm: rank(s) {', '.join(map(str, silent))} record no gradients (no_grad()) "
            f"and have no backward pass, in which the others would wait for them: call the model "
            f"in the same way on all ranks, or in eval() mode"
        )
    return is_wanted


class _Normalise(torch.autograd.Function):
    """Computes (x - mean) / sqrt(variance + eps) with the mean and variance of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, whole: _Statistics, eps: float, group: ProcessGroup
    ) -> Tensor:
        shape = (1, -1, *([1] * (input.dim() - 2)))
        scale = torch.rsqrt(whole.variance + eps)
        normalised = (_working(input) - whole.mean.view(shape)) * scale.view(shape)
        ctx.save_for_backward(normalised, scale)
        ctx.group, ctx.total, ctx.shape = group, max(whole.total, 1.0), shape
        ctx.dtype = input.dtype
        return normalised

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        normalised, scale = ctx.saved_tensors
        gradient, dims = gradients[0].to(normalised.dtype), _dims(normalised)
        sums = torch.stack([gradient.sum(dims), (gradient * normalised).sum(dims)])
        ctx.group.all_reduce(sums, ReduceOp.SUM)
        mean, projected = (sums / ctx.total).unbind()
        inner = gradient - mean.view(ctx.shape) - normalised * projected.view(ctx.shape)
        return (inner * scale.view(ctx.shape)).to(ctx.dtype), None, None, None
