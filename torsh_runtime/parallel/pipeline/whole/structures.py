"""Nested outputs of modules as tensors, which go to other stages, and the rest, which both know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

_PLAIN = (type(None), bool, int, float, str)


class _Slot(NamedTuple):
    """Stands where a tensor is."""


class Structure(NamedTuple):
    """Of an output."""

    spec: Any
    leaves: tuple[Any, ...]
    """Slots, and what is no tensor."""

    @property
    def tensors(self) -> int:
        """How many there are."""
        return sum(isinstance(leaf, _Slot) for leaf in self.leaves)

    def filled(self, tensors: Sequence[Any]) -> Any:
        """An output of this structure."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, _Slot) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


def parted(output: Any, name: str) -> tuple[Structure, list[torch.Tensor]]:
    """An output's structure and its tensors. TypeError for objects that cannot go to another stage;
    name: of the module that returned it."""
    leaves, spec = pytree.tree_flatten(output)
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
            raise TypeError(
                f"{name} returns a {type(leaf).__qualname__}, and the next stage gets tensors: let "
                f"it return tensors, in tuples or dicts"
            )
    kept = tuple(_Slot() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return Structure(spec, kept), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def is_within(name: str, other: str) -> bool:
    """Whether a module, or a parameter, is somewhere below a module; "" is the model."""
    return name.startswith(f"{other}.") or (not other and bool(name))
