"""context_attention in graphs of torch.compile: see parallel.regions.traced.

Its backward pass computes the forward pass again, for what that keeps beside its result has shapes
that a graph does not know.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.keys import own_keys
from torsh_runtime.integrations.torch.compiling import Operators
from torsh_runtime.parallel.context.attention import context_attention


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mask: Tensor | None, group: str, how: str, *tensors: Tensor) -> Tensor:
        ctx.how = mask, group, how
        ctx.save_for_backward(*tensors)
        result: Tensor = torch.ops.torsh.attended([*tensors], *ctx.how)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        given = gradients[0], [*ctx.saved_tensors], *ctx.how
        return None, None, None, *torch.ops.torsh.attended_backward(*given)


def attention(
    tensors: Sequence[Tensor], group: ProcessGroup, mask: Tensor | None, **how: Any
) -> Tensor:
    """Call context_attention() within a graph. how: its arguments other than tensors."""
    result: Tensor = torch.ops.torsh.attention([*tensors], mask, group.key, f"{how}")
    return result


def _attention(tensors: Sequence[Tensor], mask: Tensor | None, group: str, how: str) -> Tensor:
    apply: Any = _Attention.apply
    result: Tensor = apply(mask, group, how, *tensors)
    return result


def _attended(tensors: Sequence[Tensor], mask: Tensor | None, group: str, how: str) -> Tensor:
    query, key, value, *sinks = tensors
    found: Tensor = context_attention(
        query,
        key,
        value,
        own_keys().named(group),
        sinks=sinks[0] if sinks else None,
        attention_mask=mask,
        **literal_eval(how),
    )
    return found.contiguous()


def _backward(
    gradient: Tensor, tensors: Sequence[Tensor], mask: Tensor | None, group: str, how: str
) -> list[Tensor]:
    with torch.enable_grad():
        own = [each.detach().requires_grad_() for each in tensors]
        result = _attended(own, mask, group, how)
    return [each.contiguous() for each in torch.autograd.grad(result, own, gradient)]


def _like_query(tensors: Sequence[Tensor], *_: Any) -> Tensor:
    query, _key, value, *_sinks = tensors
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def _like_all(gradient: Tensor, tensors: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [each.new_empty(each.shape) for each in tensors]


_OPERATORS = Operators()
_GIVEN = "Tensor[] tensors, Tensor? mask, str group, str how"
_OPERATORS.composed(f"attention({_GIVEN}) -> Tensor", _attention)
_OPERATORS.with_effect(f"attended({_GIVEN}) -> Tensor", _attended, _like_query)
_OPERATORS.with_effect(
    f"attended_backward(Tensor gradient, {_GIVEN}) -> Tensor[]", _backward, _like_all
)
