"""Provides torch operators for what layers do in graphs of torch.compile that depends on more than
shapes.

See parallel.regions.traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.keys import own_keys
from torsh_runtime.integrations.torch.compiling import Operators, is_traced
from torsh_runtime.parallel.regions import traced
from torsh_runtime.parallel.regions.maps import AllGather, Copy
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.embeddings import check_range
from torsh_runtime.parallel.tensor.gathered_input import GatheredInput
from torsh_runtime.parallel.tensor.parts import check_same_input


class _Entrance(GatheredInput):
    """Into the layers of a group in one graph, while that is made.

    The tensors are those that torch's autograd makes the graph of: the same one as often as the
    program uses the same.
    """

    def _copied(self, tensor: Any, group: ProcessGroup) -> Tensor:
        return traced.applied(tensor, Copy(group))

    def _gathered(self, tensor: Any, group: ProcessGroup, dim: int) -> Tensor:
        dim %= tensor.dim()
        sizes = (tensor.shape[dim],) * group.world_size
        return traced.applied(tensor, AllGather(group, dim, sizes))

    def _state_of(self, tensor: Any) -> object:
        if isinstance(tensor, FakeTensor) or not tensor.requires_grad:
            return None  # where shapes alone matter, an operator may not give the same tensor twice
        return tensor._version, id(tensor.grad_fn)


class _Entrances:
    """Holds the entrances of tensors by their groups."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[ProcessGroup, _Entrance] = WeakKeyDictionary()

    def entered(self, tensor: Tensor, group: str, dims: Sequence[int]) -> Tensor:
        """Return the tensor as GatheredInput does."""
        found = own_keys().named(group)
        enter = self._known.setdefault(found, _Entrance())
        entered: Tensor = enter._let_in(tensor, found, dims[0] if dims else None)
        return tensor.view_as(tensor) if entered is tensor else entered


def entered(tensor: Tensor, group: ProcessGroup, sequence_dim: int | None) -> Tensor:
    """Return the tensor as GatheredInput does, within a graph."""
    dims = [] if sequence_dim is None else [sequence_dim]
    result: Tensor = torch.ops.torsh.entered(tensor, group.key, dims)
    return result


def compare(tensor: Tensor, axis: Axis, where: str) -> None:
    """Compare the tensor between ranks for Layer._compare_first(), within a graph too."""
    if not is_traced():
        if not (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
            check_same_input(tensor.detach(), axis, where)
        return
    if tensor.dtype.is_floating_point:
        where = "a layer"  # graphs are one for all layers of a class
    torch.ops.torsh.compare(tensor, axis.enter.key, axis.group.key, axis.name, where)


def _compare(tensor: Tensor, entrance: str, group: str, name: str, where: str) -> None:
    enter: GatheredInput = own_keys().named(entrance)
    if enter.is_due(where):
        compare(tensor, Axis(name, own_keys().named(group), enter), where)


def check_rows(indices: Tensor, rows: int, where: str) -> None:
    """Raise IndexError for indices that are no rows, also within a graph."""
    if is_traced():
        torch.ops.torsh.check_rows(indices, rows, where)
    elif indices.device.type != "cpu":  # what it finds, nobody waits for
        torch._assert_async(((indices >= 0) & (indices < rows)).all())
    elif indices.numel():
        check_range(int(indices.min()), int(indices.max()), rows, where)


def _nothing(*_: Any) -> None:
    """Return nothing, as checks do."""


_OPERATORS = Operators()
_OPERATORS.with_effect(
    "compare(Tensor tensor, str entrance, str group, str name, str where) -> ()", _compare, _nothing
)
_OPERATORS.with_effect(
    "check_rows(Tensor indices, int rows, str where) -> ()", check_rows, _nothing
)
_OPERATORS.composed("entered(Tensor tensor, str group, int[] dims) -> Tensor", _Entrances().entered)
