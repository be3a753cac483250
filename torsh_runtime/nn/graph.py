"""Records the graph of a forward pass: variables, and the operations that made them.

An operation records itself with `derived`, `derived_jointly` or `derived_several`. Its pullbacks
map the gradient of the result to those of its operands. They return a new array, or the one they
were given or a view of it, and never write into the latter.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from torsh_runtime.nn.arrays import Array, computable, is_array, is_floating
from torsh_runtime.nn.grad_mode import is_grad_enabled

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor

Gradient: TypeAlias = Array | None
"""A gradient; None represents zeros."""
Pullback: TypeAlias = Callable[[Array], Gradient]
Hook: TypeAlias = Callable[["Tensor"], "Tensor | None"]
Edge: TypeAlias = "tuple[Node | Variable, int]"
"""The target of a gradient: an output of a node, by its number, or a leaf."""
_sequence = itertools.count()


class Variable:
    """Represents an array and its place in the graph: a leaf, or an output of a node."""

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self.data: Array = data if is_array(data) else np.asarray(data)
        self.grad: Tensor | None = None
        self.node: Node | None = None
        self.output = 0
        self.hooks: dict[int, Hook] = {}
        self.accumulated: dict[int, Callable[[Any], None]] = {}
        self._requires_grad = False
        if requires_grad:
            self.requires_grad = True

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, without this variable's own hooks."""
        return {**vars(self), "hooks": {}, "accumulated": {}}

    @property
    def requires_grad(self) -> bool:
        """Return whether a backward pass has to compute a gradient for this variable."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if wanted and not is_floating(self.data.dtype):
            raise TypeError(f"only floating point tensors have gradients, not {self.data.dtype}")
        if not wanted and self.node is not None:
            raise RuntimeError("a result of recorded operations needs its gradient; use detach()")
        self._requires_grad = wanted

    def edge(self) -> Edge:
        """Return the target of this variable's gradient."""
        return (self, 0) if self.node is None else (self.node, self.output)


class Node:
    """Represents one recorded operation.

    `edges` lead to the operands that need gradients. `pullback` maps the gradients of all outputs
    to theirs and is freed after a backward pass; if each edge has a pullback of its own, `apart`
    has these. Nodes are numbered as they are made, so gradients can flow in descending order.
    """

    __slots__ = ("__weakref__", "apart", "edges", "hooks", "outputs", "pullback", "sequence")

    def __init__(
        self,
        edges: Sequence[Edge],
        outputs: Sequence[Array],
        pullback: Callable[[list[Gradient]], Sequence[Gradient]],
        apart: Sequence[Pullback] | None = None,
    ) -> None:
        self.apart = apart
        self.sequence = next(_sequence)
        self.edges = edges
        self.outputs = [(array.shape, array.dtype) for array in outputs]
        self.pullback: Callable[[list[Gradient]], Sequence[Gradient]] | None = pullback
        self.hooks: dict[int, dict[int, Hook]] = {}


def operand(value: Any) -> Any:
    """Return what operations compute with: a tensor's array, an array, or a number.

    16-bit types are converted to float32. numpy's scalars are treated as Python's, which take the
    precision of the arrays they are combined with.
    """
    array = value.data if isinstance(value, Variable) else value
    if is_array(array):
        return computable(array)
    return array.item() if isinstance(array, np.generic) else array


def needs_gradient(value: Any) -> bool:
    """Return whether an operation on `value` in this thread has to be recorded for its gradient."""
    return is_grad_enabled() and isinstance(value, Variable) and value.requires_grad


def derived(result: Any, *operands: tuple[Any, Pullback]) -> Tensor:
    """Return a tensor of `result`. Each operand comes with its pullback."""
    from torsh_runtime.nn.tensor import Tensor

    tensor = Tensor(result)
    needed = [(source, pullback) for source, pullback in operands if needs_gradient(source)]
    if needed:
        pullbacks = [pullback for _, pullback in needed]
        edges = [source.edge() for source, _ in needed]
        _record(edges, [tensor], lambda gradients: [f(gradients[0]) for f in pullbacks], pullbacks)
    return tensor


def derived_jointly(
    result: Any, operands: Sequence[Any], pullback: Callable[[Array], Sequence[Gradient]]
) -> Tensor:
    """Return a tensor of `result`; one function computes the gradients of all operands."""
    return derived_several([result], operands, lambda gradients: pullback(gradients[0]))[0]


def derived_several(
    results: Sequence[Any],
    operands: Sequence[Any],
    pullback: Callable[[list[Gradient]], Sequence[Gradient]],
) -> list[Tensor]:
    """Return tensors of `results`; `pullback` maps their gradients to those of all operands."""
    from torsh_runtime.nn.tensor import Tensor

    tensors = [Tensor(result) for result in results]
    needed = [place for place, source in enumerate(operands) if needs_gradient(source)]
    if needed:
        edges = [operands[place].edge() for place in needed]
        _record(edges, tensors, lambda gradients: _picked(pullback(gradients), needed))
    return tensors


def _picked(gradients: Sequence[Gradient], places: Sequence[int]) -> list[Gradient]:
    return [gradients[place] for place in places]


def _record(
    edges: Sequence[Edge],
    tensors: Sequence[Tensor],
    pullback: Callable[[list[Gradient]], Sequence[Gradient]],
    apart: Sequence[Pullback] | None = None,
) -> None:
    node = Node(edges, [tensor.data for tensor in tensors], pullback, apart)
    for output, tensor in enumerate(tensors):
        if is_floating(tensor.data.dtype):
            tensor.node, tensor.output = node, output
            tensor.requires_grad = True
