"""Operations on tensors that stand for others: torch's traceable wrapper subclasses.

Such a class says by its __torch_dispatch__ what torch's own operators do with the tensors within;
a group in C++ calls those operators, and one written in Python has to ask for that.
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
    """The group's operation, as the classes of its tensors have it. DTensors are not taken: they
    have operations of their own.

    given: tensors in the first two places or in one, and options in the last.
    Raises the refusal of the operation itself where no tensor stands for others.
    """
    classes = {type(leaf) for leaf in tree_leaves(given) if is_traceable_wrapper_subclass(leaf)}
    if not classes or any(kind.__name__ == "DTensor" for kind in classes):
        raise refusal
    with _Within(group, operation, given) as within:
        getattr(shadow(group.rank(), group.size()), operation)(*given)
    return TorshWork(within.works, tree_leaves(given[0]))


class _Within(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Carries out what classes make of an operator."""

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
            return NotImplemented  # the class comes first
        self.works += self._operation(*args[: self._num_tensors], *self._others).parts
        # The shadow writes into its outputs; it returns these and a Work of C++, or just the Work.
        returned = operator(*tree_map_only(torch.Tensor, torch.empty_like, args))
        return (args[0], *returned[1:]) if isinstance(returned, tuple) else returned
