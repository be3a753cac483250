"""Brings a tensor into layers of which each rank has a part."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.keys import own_keys
from torsh_runtime.framework import Tensor
from torsh_runtime.framework.operations import Operation
from torsh_runtime.nn.graph import needs_gradient
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.regions.maps import AllGather, Copy


class GatheredInput:
    """Lets a tensor that several layers are given one after the other, as those of queries, keys
    and values are, enter them together: one collective instead of one for each.

    What a module gathered of a sequence for the layers below it enters these as it is. It holds on
    to what it let in last until something else enters, or, where what it let in does not hold the
    tensor itself, as a view does, until nobody else has that.
    """

    def __init__(self) -> None:
        self.key = own_keys().key_for(self)
        self._known: Callable[[], Any] = _nothing
        self._state: object = None
        self._entered: Any = None
        self._whole: Callable[[], Any] = _nothing
        self.drawing: list[ExitStack] = []
        """Blocks in which what is drawn is of this rank's own, until a Row layer sums."""
        self.summing: tuple[str, ...] = ()
        """The modules that compute parts of sums now."""
        self._first, self._calls, self._due = "", 0, 1

    def may_compare(self, where: str) -> bool:
        """Return whether this layer may be the one whose input ranks compare."""
        return not self._first or self._first == where

    def is_due(self, where: str) -> bool:
        """Count a call of the layer. Return whether ranks compare its input: in the first, second,
        fourth, eighth call and so on of the layer that is asked about first."""
        if not self.may_compare(where):
            return False
        self._first = where
        self._calls += 1
        if self._calls < self._due:
            return False
        self._due *= 2
        return True

    def __call__(
        self, tensor: Tensor, group: ProcessGroup, sequence_dim: int | None, deferred: Any = None
    ) -> Any:
        """Return what each rank may use in its own way: the tensor, or, with a sequence_dim, all
        ranks' parts of it along that. deferred: what applies the operation in place of regions."""
        if group.world_size == 1:
            return tensor
        if regions.is_traced():
            from torsh_runtime.parallel.tensor import traced

            given: Any = tensor  # of torch, as graphs are
            return traced.entered(given, group, sequence_dim)
        return self._let_in(tensor, group, sequence_dim, deferred)

    def _let_in(
        self, tensor: Tensor, group: ProcessGroup, sequence_dim: int | None, deferred: Any = None
    ) -> Any:
        state = (sequence_dim, self._state_of(tensor))
        if self._known() is tensor and self._state == state:
            return self._entered
        if tensor is self._whole():
            return tensor
        if deferred is not None:
            entered = deferred.enter(tensor, _operation(tensor, group, sequence_dim))
        elif sequence_dim is None:
            entered = self._copied(tensor, group)
        else:
            entered = self._gathered(tensor, group, sequence_dim)
        self._whole = weakref.ref(entered) if sequence_dim is not None else _nothing
        if entered is not tensor and state[1] is not None:
            self._known, self._state = weakref.ref(tensor, self._forget), state
            self._entered = entered
        return entered

    def _copied(self, tensor: Tensor, group: ProcessGroup) -> Any:
        return regions.copy(tensor, group)

    def _gathered(self, tensor: Tensor, group: ProcessGroup, dim: int) -> Any:
        return regions.all_gather(tensor, group, dim)

    def _state_of(self, tensor: Tensor) -> object:
        """Return a value that changes when the same tensor has to enter anew. None means that
        this is unknown: the memory of a tensor that is in no graph may be written to without a
        trace."""
        torch = sys.modules["torch"] if hasattr(tensor, "is_inference") else None
        records = (
            torch.is_grad_enabled() and tensor.requires_grad if torch else needs_gradient(tensor)
        )
        return getattr(tensor, "_version", True) if records and not tensor.is_leaf else None

    def end_drawing(self) -> None:
        """End drawing for a part: what follows is drawn for what all ranks have."""
        if self.drawing:
            self.drawing.pop().close()

    def _forget(self, known: object) -> None:
        if known is self._known:
            self._entered = None


def _operation(tensor: Tensor, group: ProcessGroup, sequence_dim: int | None) -> Operation:
    """Return what brings a tensor in."""
    if sequence_dim is None:
        return Copy(group)
    dim = sequence_dim % len(tensor.shape)
    return AllGather(group, dim, (tensor.shape[dim],) * group.world_size)


def _nothing() -> None:
    """Return None, as a weak reference to a dead tensor does."""
