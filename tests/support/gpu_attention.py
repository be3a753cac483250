"""Stand-ins for torch's attention operators of GPUs, which compute CPU tensors by plain products.

They are registered for CPUs under torch's own schemas, which check what they are called with. They
refuse what the kernels for NVIDIA GPUs refuse or read wrongly (dtypes, sizes of heads, alignment,
layouts), and return what these return: the layout of outputs, a logsumexp that is padded by
infinity to 32 rows, causal attention that ends at the last key (flash) or begins at the first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from support import context_parallel

from torsh_runtime.parallel.context import flash
from torsh_runtime.parallel.context.gpu_kernels import Efficient, FlashOnGpu
from torsh_runtime.parallel.context.kernels import Columns, Products

Tensor = torch.Tensor
_NAMES = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
)


def register() -> Any:
    """Let torch's operators compute CPU tensors for as long as what is returned is kept."""
    library = torch.library.Library("aten", "IMPL")
    made = (_flash, _flash_backward, _efficient, _efficient_backward)
    for name, each in zip(_NAMES, made, strict=True):
        library.impl(name, each, "CPU")
    return library


def _flash(
    q: Any, k: Any, v: Any, p: float = 0, causal: bool = False, debug: bool = False, *, scale: float
) -> tuple[Any, ...]:
    _check_flash(q, k, v)
    assert not p
    assert not debug
    output, logsumexp = _attended(q, k, v, _last(q, k, causal), scale)
    like = torch.empty_like(q.transpose(1, 2)).transpose(1, 2).copy_(output)
    seeds = torch.empty(2, dtype=torch.uint64), torch.empty((), dtype=torch.uint64)
    return like, logsumexp, None, None, q.shape[2], k.shape[2], *seeds, q.new_empty(0)


def _flash_backward(*given: Any, scale: float) -> tuple[Any, ...]:
    grad, q, k, v, out, logsumexp, *lengths, p, causal, seed, offset = given
    _check_flash(q, k, v)
    _check_flash(grad, out, out)
    assert (*lengths, p) == (None, None, q.shape[2], k.shape[2], 0)
    assert (seed.dtype, offset.dtype) == (torch.uint64, torch.uint64)
    assert logsumexp.is_contiguous()
    assert logsumexp.dtype is torch.float32
    assert logsumexp.shape == q.shape[:3]
    found = _gradients(grad, q, k, v, out, logsumexp, _last(q, k, causal), scale)
    return tuple(each.to(q.dtype) for each in found)


def _efficient(
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    compute_log_sumexp: bool,
    p: float = 0,
    causal: bool = False,
    *,
    scale: float,
) -> tuple[Any, ...]:
    _check_efficient(q, k, v, bias)
    assert compute_log_sumexp
    assert not p
    output, logsumexp = _attended(q, k, v, _first(q, k, causal, bias), scale)
    by_token = output.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2)
    rows = -q.shape[2] % 32
    padded = torch.nn.functional.pad(logsumexp, (0, rows), value=math.inf)
    return by_token, padded, torch.empty((), dtype=torch.int64), torch.empty((), dtype=torch.int64)


def _efficient_backward(*given: Any, scale: float) -> tuple[Any, ...]:
    grad, q, k, v, bias, out, logsumexp, seed, offset, p, mask, *causal = given
    _check_efficient(q, k, v, bias)
    assert {grad.dtype, out.dtype} == {q.dtype}
    assert {seed.dtype, offset.dtype} == {torch.int64}
    assert (p, mask) == (0, [True, True, True, False])
    assert out.transpose(1, 2).is_contiguous()
    assert logsumexp.shape == (*q.shape[:2], -(-q.shape[2] // 32) * 32)
    assert logsumexp.is_contiguous()
    rows = logsumexp[..., : q.shape[2]]
    assert (logsumexp[..., q.shape[2] :] == math.inf).all()
    added = _first(q, k, causal == [True], bias)
    found = _gradients(grad, q, k, v, out, rows, added, scale)
    return *(each.to(q.dtype) for each in found), None


def _check_flash(q: Tensor, k: Tensor, v: Tensor) -> None:
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert q.shape[-1] == k.shape[-1] == v.shape[-1] <= 256
    assert q.shape[1] % k.shape[1] == 0
    _check_alike(q, k, v)


def _check_efficient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> None:
    assert q.dtype in (torch.float32, torch.float16, torch.bfloat16)
    assert q.shape[1] == k.shape[1] == v.shape[1]
    _check_alike(q, k, v)
    if bias is not None:
        assert bias.shape == (*q.shape[:3], k.shape[2])
        assert bias.dtype == q.dtype
        assert bias.stride(-1) == 1
        assert not any(each % 16 for each in bias.stride()[:-1])


def _check_alike(*tensors: Tensor) -> None:
    for each in tensors:
        assert each.dtype == tensors[0].dtype
        assert each.shape[-1] % 8 == 0
        assert each.stride(-1) == 1
        assert not any(step % 8 for step in (each.storage_offset(), *each.stride()[:-1]))


def _last(q: Tensor, k: Tensor, is_causal: bool) -> Tensor:
    """What is added to scores in causal attention whose last query looks at the last key."""
    return _above(q, k, k.shape[2] - q.shape[2]) if is_causal else torch.zeros(1).double()


def _first(q: Tensor, k: Tensor, is_causal: bool, bias: Tensor | None) -> Tensor:
    """The same where the first query looks at the first key, and a bias."""
    added = _above(q, k, 0) if is_causal else torch.zeros(1).double()
    return added if bias is None else added + bias.double()


def _above(q: Tensor, k: Tensor, diagonal: int) -> Tensor:
    full = torch.full((q.shape[2], k.shape[2]), -math.inf, dtype=torch.float64)
    return full.triu(diagonal + 1)


def _scores(q: Tensor, k: Tensor, added: Tensor, scale: float) -> Tensor:
    return q.double() @ k.double().transpose(-1, -2) * scale + added


def _attended(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    several = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(several, 1), v.repeat_interleave(several, 1)
    scores = _scores(q, k, added, scale)
    return scores.softmax(-1) @ v.double(), scores.logsumexp(-1).float()


def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    added: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    heads, several = k.shape[1], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(several, 1), v.repeat_interleave(several, 1)
    grad, out = grad.double(), out.double()
    weights = (_scores(q, k, added, scale) - logsumexp.double()[..., None]).exp()
    delta = (grad * out).sum(-1, keepdim=True)
    inner = weights * (grad @ v.double().transpose(-1, -2) - delta) * scale
    for_key, for_value = inner.transpose(-1, -2) @ q.double(), weights.transpose(-1, -2) @ grad
    of_keys, of_values = (
        each.unflatten(1, (heads, several)).sum(2) for each in (for_key, for_value)
    )
    return inner @ k.double(), of_keys, of_values


class Single(context_parallel.Framework):
    """torch with tensors in float32."""

    def tensor(self, array: Any, needs_gradient: bool = False) -> Any:
        found = torch.tensor(array)
        found = found.float() if found.is_floating_point() else found
        return found.requires_grad_(needs_gradient)


def of_ranks(rank: int, ranks: int) -> dict[str, Any]:
    """How far attention over parts of sequences by these kernels is from one process's: by case and
    method in float32, and what context_parallel says of 16 bits."""
    kept = register()
    setattr(flash, "kernel_for", _kernel_for)  # noqa: B010
    far, kind = context_parallel.differences, Single("torch")
    found: dict[str, Any] = {
        f"{name}, {method}": far(name, method, kind, rank, ranks)
        for name in context_parallel.CASES
        for method in context_parallel.METHODS
        if context_parallel.CASES[name].softcap is None
    }
    found["half"] = context_parallel.half_precision(rank, ranks)
    found["rounded"] = context_parallel.rounded(rank, ranks)
    del kept
    return found


def _kernel_for(query: Tensor, value: Tensor) -> Any:
    if query.dtype is torch.float64:
        return Columns(Products(), Products.in_columns)
    is_flash = query.dtype is not torch.float32 and query.shape[-1] == value.shape[-1]
    return FlashOnGpu(Efficient()) if is_flash else Efficient()
