"""torch's fused kernels of batch normalisation, which it has for GPUs only, on the CPU.

Each takes and returns what torch's native function of its name does on GPUs.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def _stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(_wide(input), _dims(input), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gather_stats(
    input: Tensor,
    means: Tensor,
    scales: Tensor,
    running_mean: Tensor | None,
    running_variance: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Join them one by one, as the kernel does: without values on the first rank it divides by
    zero."""
    mean, spread, total = torch.zeros_like(means[0]), torch.zeros_like(means[0]), counts[0] * 0
    for each, scale, count in zip(means, scales, counts, strict=True):
        share = 1 / (total + count)
        spread = spread + (scale**-2 - eps) * count + (mean - each) ** 2 * total * count * share
        mean = total * share * mean + count * share * each
        total = total + count
    if running_mean is not None and running_variance is not None:
        running_mean.mul_(1 - momentum).add_(momentum * mean)
        running_variance.mul_(1 - momentum).add_(momentum * spread / (total - 1))
    return mean, torch.rsqrt(spread / total + eps)


def _elemt(
    input: Tensor, weight: Any, bias: Any, mean: Tensor, scale: Tensor, eps: float
) -> Tensor:
    found = (_wide(input) - _shaped(mean, input)) * _shaped(scale, input)
    if weight is not None:
        found = found * _shaped(weight, input) + _shaped(bias, input)
    return found.to(input.dtype)


def _backward_reduce(
    gradient: Tensor, input: Tensor, mean: Tensor, scale: Tensor, weight: Any, *wanted: bool
) -> tuple[Any, ...]:
    centred = _wide(input) - _shaped(mean, input)
    plain = _wide(gradient).sum(_dims(input))
    projected = (_wide(gradient) * centred).sum(_dims(input))
    of_weight = (projected * scale).to(weight.dtype) if wanted[1] else None
    return plain, projected, of_weight, plain.to(weight.dtype) if wanted[2] else None


def _backward_elemt(
    gradient: Tensor,
    input: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Any,
    plain: Tensor,
    projected: Tensor,
    counts: Tensor,
) -> Tensor:
    assert counts.dtype is torch.int32
    total, centred = counts.sum(), _wide(input) - _shaped(mean, input)
    factor = scale if weight is None else scale * weight
    inner = _wide(gradient) - _shaped(plain / total, input)
    inner = inner - centred * _shaped(scale**2 * projected / total, input)
    return (inner * _shaped(factor, input)).to(input.dtype)


def _wide(input: Tensor) -> Tensor:
    return input if input.dtype is torch.float64 else input.float()


def _dims(input: Tensor) -> list[int]:
    return [0, *range(2, input.dim())]


def _shaped(channels: Tensor, input: Tensor) -> Tensor:
    return channels.view(1, -1, *([1] * (input.dim() - 2)))


KERNELS: dict[str, Any] = {
    "aten::batch_norm_stats": _stats,
    "aten::batch_norm_gather_stats_with_counts": _gather_stats,
    "aten::batch_norm_elemt": _elemt,
    "aten::batch_norm_backward_reduce": _backward_reduce,
    "aten::batch_norm_backward_elemt": _backward_elemt,
}
