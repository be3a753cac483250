"""Carries out operations on tensors that wrap others: torch's traceable wrapper subclasses.

The __torch_dispatch__ of such a class defines what torch's own operators do with the wrapped
tensors. A group in C++ calls those operators; one written in Python must call them explicitly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

from torsh_runtime.backends.work import Work
from torsh_runtime.integrations.torch.observing import shadow
from torsh_runtime.integrations.torch.work import TorshWork


def carry_out(group: Any, operation: str, given: Sequence[Any], refusal: TypeError) -> TorshWork:
    """Carry out the group's operation as the classes of its tensors define it.

    DTensors are not supported, as they have operations of their own.

    given: tensors in the first place or the first two, and options in the last.
    Raises `refusal`, the error of the operation itself, if no tensor wraps others.
    """
    classes = {type(leaf) for leaf in tree_leaves(given) if is_traceable_wrapper_subclass(leaf)}
    if not classes or any(kind.__name__ == "DTensor" for kind in classes):
        raise refusal
    with _Within(group, operation, given) as within:
        getattr(shadow(group.rank(), group.size()), operation)(*given)
    return TorshWork(within.works, tree_leaves(given[0]))


class _Within(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Carries out the calls that classes make for an operator."""

    def __init__(self, group: Any, operation: str, given: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.works: list[Work] = []
        self._operation = getattr(group, operation)
        self._num_tensors = min(2, len(given) - 1)
        self._others = given[self._num_tensors :]

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operator.namespace != "c10d":
            return operator(*args, **(kwargs or {}))
        if types:
            return NotImplemented  # the class handles it first
        self.works += self._operation(*args[: self._num_tensors], *self._others).parts
        # The shadow writes into its outputs; it returns these and a Work of C++, or just the Work.
        returned = operator(*tree_map_only(torch.Tensor, torch.empty_like, args))
        return (args[0], *returned[1:]) if isinstance(returned, tuple) else returned
