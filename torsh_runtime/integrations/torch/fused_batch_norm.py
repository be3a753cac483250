"""Normalises batches on GPUs over all ranks by torch's fused kernels, with one wait per layer."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.group import ProcessGroup

Tensor = torch.Tensor
_HEAD = 3
"""Numbers in a row before its statistics: how many values, and two that tell of gradients."""


class Gathered(NamedTuple):
    """Holds the statistics of each rank."""

    heads: list[list[float]]
    """Three numbers of each rank: how many values of a channel it has, whether its input requires a
    gradient, and whether it records gradients."""
    counts: Tensor
    means: Tensor
    scales: Tensor
    """Reciprocals of the standard deviations."""

    @classmethod
    def of(
        cls, input: Tensor, eps: float, tells: tuple[bool, bool], group: ProcessGroup
    ) -> Gathered:
        """Exchange the statistics. tells: the other two numbers of this rank's head."""
        channels, count = input.shape[1], input.numel() // input.shape[1]
        dtype = torch.float64 if input.dtype is torch.float64 else torch.float32
        head = torch.tensor([count, *tells], dtype=dtype).to(input.device, non_blocking=True)
        if count:
            mean, scale = torch.batch_norm_stats(_dense(input), eps)
        else:
            mean, scale = head.new_zeros(channels), head.new_ones(channels)
        own = torch.cat([head, mean, scale])
        rows = own.new_empty(group.world_size, own.numel())
        group.all_gather_into_tensor(rows, own)
        means, scales = rows[:, _HEAD:].chunk(2, dim=1)
        return cls(rows[:, :_HEAD].cpu().tolist(), rows[:, 0], means, scales)

    @property
    def total(self) -> float:
        """Return the number of values of a channel on all ranks."""
        return sum(head[0] for head in self.heads)

    @property
    def is_regular(self) -> bool:
        """Return whether torch's function can join them: it divides by the number of values of the
        first rank, and by that of all less one."""
        return all(head[0] for head in self.heads) and self.total > 1

    def joined(self, eps: float) -> tuple[Tensor, Tensor]:
        """Return mean and variance over all ranks."""
        counts, divisor = self.counts.unsqueeze(1), max(self.total, 1.0)
        mean = (self.means * counts).sum(0) / divisor
        variances = self.scales**-2 - eps + (self.means - mean) ** 2
        return mean, ((variances * counts).sum(0) / divisor).clamp(min=0)

    def joined_by_torch(
        self, running: tuple[Tensor | None, Tensor | None], momentum: float, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return mean and scale over all ranks, and update the running statistics."""
        join: Any = torch.batch_norm_gather_stats_with_counts
        found = join(
            *(self.means, self.means.contiguous(), self.scales.contiguous(), *running),
            *(momentum, eps, self.counts.contiguous()),
        )
        return found[0], found[1]


def normalise(
    input: Tensor, affine: tuple[Tensor | None, Tensor | None], whole: Any, group: ProcessGroup
) -> Tensor:
    """Normalize the input, and apply weight and bias. whole: mean, scale and counts."""
    mean = whole[0]
    weight, bias = (
        each if each is None or each.dtype is input.dtype else each.to(mean.dtype)
        for each in affine
    )
    apply: Any = _Normalise.apply
    found: Tensor = apply(_dense(input), weight, bias, *whole, group)
    return found


class _Normalise(torch.autograd.Function):
    """Computes (x - mean) * scale * weight + bias with the mean and scale of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        scale: Tensor,
        counts: Tensor,
        group: ProcessGroup,
    ) -> Tensor:
        ctx.save_for_backward(input, weight, mean, scale, counts)
        ctx.group = group
        if not input.numel():
            return torch.empty_like(input)
        found: Tensor = torch.batch_norm_elemt(input, weight, bias, mean, scale, 0.0)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, mean, scale, counts = ctx.saved_tensors
        wanted, gradient = ctx.needs_input_grad[:3], _dense(gradients[0])
        if input.numel():
            reduce: Any = torch.batch_norm_backward_reduce
            sums = reduce(gradient, input, mean, scale, weight, *wanted)
        else:
            nothing = None if weight is None else torch.zeros_like(weight)
            sums = torch.zeros_like(mean), torch.zeros_like(mean), nothing, nothing
        found = None
        if wanted[0]:
            both = torch.cat(sums[:2])
            ctx.group.all_reduce(both, ReduceOp.SUM)
            found = torch.zeros_like(input)
            if input.numel():
                spread: Any = torch.batch_norm_backward_elemt
                parts = (*both.chunk(2), counts.to(torch.int32))
                found = spread(gradient, input, mean, scale, weight, *parts)
        of_affine = (
            each if is_wanted else None
            for each, is_wanted in zip(sums[2:], wanted[1:], strict=True)
        )
        return found, *of_affine, None, None, None, None


def _dense(tensor: Tensor) -> Tensor:
    """Return the tensor in an order in memory that the kernels take."""
    formats = (torch.channels_last, torch.channels_last_3d)
    is_taken = any(tensor.is_contiguous(memory_format=each) for each in formats)
    return tensor if is_taken else tensor.contiguous()
