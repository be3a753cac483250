"""Separates nested outputs of modules into tensors, which go to other stages, and a structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

_PLAIN = (type(None), bool, int, float, str)


class _Slot(NamedTuple):
    """Stands for a tensor in a structure."""


class Structure(NamedTuple):
    """Describes a nested output without its tensors."""

    spec: Any
    leaves: tuple[Any, ...]
    """Slots for tensors, and other values themselves."""

    @property
    def tensors(self) -> int:
        """Return the number of tensors."""
        return sum(isinstance(leaf, _Slot) for leaf in self.leaves)

    def filled(self, tensors: Sequence[Any]) -> Any:
        """Return an output of this structure with these tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, _Slot) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


def parted(output: Any, name: str) -> tuple[Structure, list[torch.Tensor]]:
    """Return an output's structure and its tensors.

    Raises TypeError for objects that cannot go to another stage. name: the module that returned it.
    """
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
    """Return whether a module or parameter is somewhere below a module; "" is the model."""
    return name.startswith(f"{other}.") or (not other and bool(name))
