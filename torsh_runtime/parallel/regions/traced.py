"""Collectives in graphs of torch.compile: operators of torch, which name their group by its key.

`torsh::region` has a gradient, and is taken apart into torch's own operators and
`torsh::collective`, which has none. The latter has an effect, so no compiler leaves one out, has
one done again, or changes their order, which ranks that have larger parts would change in another
way than others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torsh_runtime.comm.keys import own_keys
from torsh_runtime.integrations.torch.compiling import Operators
from torsh_runtime.parallel.regions.maps import (
    AllGather,
    AllToAll,
    Copy,
    Gather,
    Map,
    ReduceScatter,
    Scatter,
    Sum,
)

_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Copy, Sum, Gather, Scatter, AllGather, ReduceScatter, AllToAll)
}
Numbers = Sequence[Any]


class _Region(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, applied_map: Map) -> torch.Tensor:
        ctx.map = applied_map
        if isinstance(applied_map, Copy):
            return tensor.view_as(tensor)
        if isinstance(applied_map, Scatter):
            return _own(applied_map, tensor)
        return _call(torch.ops.torsh.collective, tensor, applied_map)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return applied(gradients[0], ctx.map.adjoint), None


def applied(tensor: torch.Tensor, applied_map: Map) -> torch.Tensor:
    """Apply a map to a tensor within a graph, like regions.applied()."""
    return _call(torch.ops.torsh.region, tensor, applied_map)


def _call(operator: Any, tensor: torch.Tensor, applied_map: Map) -> torch.Tensor:
    kind, group = type(applied_map).__name__, applied_map.group.key
    result: torch.Tensor = operator(tensor, kind, group, applied_map.numbers)
    return result


def _own(applied_map: Map, tensor: torch.Tensor) -> torch.Tensor:
    compute: Any = applied_map
    result: torch.Tensor = compute(tensor)
    return result


def _map(kind: str, group: str, numbers: Numbers) -> Map:
    found: Map = _KINDS[kind].of(own_keys().named(group), numbers)
    return found


def _region(tensor: torch.Tensor, kind: str, group: str, numbers: Numbers) -> torch.Tensor:
    apply: Any = _Region.apply
    result: torch.Tensor = apply(tensor, _map(kind, group, numbers))
    return result


def _collective(tensor: torch.Tensor, kind: str, group: str, numbers: Numbers) -> torch.Tensor:
    return _own(_map(kind, group, numbers), tensor)


def _fake(tensor: torch.Tensor, kind: str, group: str, numbers: Numbers) -> torch.Tensor:
    return tensor.new_empty(_map(kind, group, numbers).shape(tensor.shape))


_OPERATORS = Operators()
_SCHEMA = "(Tensor tensor, str kind, str group, SymInt[] numbers) -> Tensor"
_OPERATORS.composed(f"region{_SCHEMA}", _region)
_OPERATORS.with_effect(f"collective{_SCHEMA}", _collective, _fake)
