"""Carries out the backward pass: walks the recorded graph from the last operation to the first.

The walk is iterative, frees what it has used, and calls a leaf's hooks as soon as its gradient is
complete, while it continues.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from torsh_runtime.nn.arrays import Array, array_module
from torsh_runtime.nn.grad_mode import no_grad
from torsh_runtime.nn.graph import Edge, Gradient, Hook, Node, Pullback, Variable

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor

Callback = Callable[[], None]
_Later = list[tuple[Variable, Pullback, Array]]
"""Leaves whose gradients are computed later, from what has arrived at the operations before
them."""


class _Present(threading.local):
    callbacks: list[Callback] | None = None


_present = _Present()


def queue_callback(callback: Callback) -> None:
    """Call `callback` at the end of this thread's current backward pass.

    For nested passes this is the end of the outermost.

    Args:
        callback: A function without arguments.

    Raises:
        RuntimeError: Outside of a backward pass.

    Example:
        ```python
        x.register_hook(lambda gradient: tr.nn.queue_callback(finish))
        ```
    """
    if _present.callbacks is None:
        raise RuntimeError("queue_callback() is for the time of a backward pass, in a hook of it")
    _present.callbacks.append(callback)


def in_backward() -> bool:
    """Return whether this thread is in a backward pass."""
    return _present.callbacks is not None


def leaves(tensors: Iterable[Any]) -> Iterator[Tensor]:
    """Yield once each leaf that needs gradients and on which `tensors` depend.

    Args:
        tensors: The tensors.

    Example:
        ```python
        trained = list(tr.nn.leaves([loss]))
        ```
    """
    _, uses = _survey([tensor.edge() for tensor in tensors if tensor.requires_grad])
    yield from uses  # type: ignore[misc]


def backward(
    tensors: Sequence[Any], gradients: Sequence[Gradient] | None = None, retain_graph: bool = False
) -> None:
    """Add the gradient of the sum of `tensors`, weighted by `gradients`, to that of each leaf.

    gradients: one array for each tensor, of its shape; None, also for a single tensor, means 1 and
    is allowed for tensors of one element. A leaf without a gradient gets the array that arrives; an
    existing gradient is added to in place. Without `retain_graph` the graph is freed and cannot be
    walked again.

    Raises RuntimeError for tensors that need no gradients, and for a graph that was freed.
    """
    walk(tensors, gradients or [None] * len(tensors), retain_graph, _accumulate)


def gradients_of(
    tensors: Sequence[Any], gradients: Sequence[Gradient], wanted: Sequence[Variable]
) -> list[Gradient]:
    """Return the gradients of the leaves `wanted`, without accumulating or calling leaves' hooks.

    Gradients that other code may hold are views.
    """
    found: dict[int, Array] = {}

    def arrive(leaf: Variable, gradient: Array, own: bool) -> None:
        found[id(leaf)] = gradient if own else gradient[...]

    walk(tensors, gradients, False, arrive)
    return [found.get(id(leaf)) for leaf in wanted]


def backward_inputs(
    tensors: Sequence[Any], gradients: Sequence[Gradient], inputs: Sequence[Variable]
) -> Callable[[], None]:
    """Carry out the part of backward() that the leaves `inputs` need, and accumulate their
    gradients.

    The returned function accumulates, once, the gradients of the other leaves that can be computed
    later: those of operations with a pullback for each operand, such as linear, conv2d and
    embedding.
    """
    later: _Later = []
    starts = [_start(*pair) for pair in zip(tensors, gradients, strict=True)]
    edges = [tensor.edge() for tensor in tensors]
    with _pass(), no_grad():
        _Walk(edges, False, _accumulate, later, {id(leaf) for leaf in inputs}).carry(starts)
    return partial(_make_up_for, later)


def _make_up_for(later: _Later) -> None:
    awaited = Counter(id(leaf) for leaf, _, _ in later)
    sums: dict[int, _Sum] = {}
    with _pass(), no_grad():
        while later:
            leaf, pullback, arrived = later.pop(0)
            gradient = pullback(arrived)
            found = sums.setdefault(id(leaf), _Sum())
            if gradient is not None:
                own = _is_new(gradient, [gradient], [arrived])
                found.add(*_of_dtype(gradient, own, leaf.data.dtype))
            awaited[id(leaf)] -= 1
            if not awaited[id(leaf)]:
                _finish(leaf, sums.pop(id(leaf)), _accumulate)


def _finish(leaf: Any, found: _Sum, arrive: Callable[[Any, Array, bool], None]) -> None:
    if found.total is not None:
        arrive(leaf, found.total, found.own)


def walk(
    tensors: Sequence[Any],
    gradients: Sequence[Gradient],
    retain_graph: bool,
    arrive: Callable[[Any, Array, bool], None],
) -> None:
    """Carry gradients to the leaves, calling arrive(leaf, gradient, is_not_shared) for each."""
    starts = [_start(*pair) for pair in zip(tensors, gradients, strict=True)]
    edges = [tensor.edge() for tensor in tensors]
    with _pass(), no_grad():
        _Walk(edges, retain_graph, arrive).carry(starts)


@contextmanager
def _pass() -> Iterator[None]:
    """Run a backward pass in this thread; the outermost pass ends with all callbacks."""
    if _present.callbacks is not None:
        yield
        return
    callbacks: list[Callback] = []
    _present.callbacks = callbacks
    try:
        yield
        while callbacks:
            callbacks.pop(0)()
    finally:
        _present.callbacks = None


def _start(tensor: Any, gradient: Gradient) -> Array:
    if not tensor.requires_grad:
        raise RuntimeError("this tensor does not depend on any leaf that needs a gradient")
    data = tensor.data
    if gradient is None:
        if data.size != 1:
            raise RuntimeError(
                f"a gradient is implied for tensors of one element only, and this one has shape "
                f"{data.shape}; reduce it to a scalar or pass backward() a gradient"
            )
        return array_module(data).ones_like(data)
    if gradient.shape != data.shape:
        raise RuntimeError(f"the gradient has shape {gradient.shape}, the tensor {data.shape}")
    return gradient


def _survey(edges: Sequence[Edge]) -> tuple[list[Node], Counter[Variable]]:
    """Return the reachable nodes, first to last, and the number of gradients each leaf will get."""
    uses: Counter[Variable] = Counter()
    nodes: set[Node] = set()
    stack = list(edges)
    while stack:
        target, _ = stack.pop()
        if isinstance(target, Variable):
            uses[target] += 1
        elif target not in nodes:
            nodes.add(target)
            stack.extend(target.edges)
    return sorted(nodes, key=lambda node: node.sequence), uses


class _Sum:
    """Adds up a gradient, in place only if no other code holds the array."""

    __slots__ = ("own", "total")

    def __init__(self) -> None:
        self.total: Gradient = None
        self.own = False

    def add(self, gradient: Array, own: bool) -> None:
        if self.total is None:
            self.total, self.own = gradient, own
        elif self.own:
            self.total += gradient
        elif own:
            gradient += self.total
            self.total, self.own = gradient, True
        else:
            self.total, self.own = self.total + gradient, True
            if isinstance(self.total, np.generic):
                self.total = np.asarray(self.total)


class _Walk:
    def __init__(
        self,
        edges: Sequence[Edge],
        retain_graph: bool,
        arrive: Callable[[Any, Array, bool], None],
        later: _Later | None = None,
        now: Set[int] = frozenset(),
    ) -> None:
        """Prepare a walk. `later` takes work that can wait, for leaves whose id() is not in
        `now`."""
        self._later, self._now = later, now
        self._left: set[int] = set()
        self._edges = edges
        self._retain = retain_graph
        self._arrive = arrive
        self._nodes, self._awaited = _survey(edges)
        self._sums: dict[Edge, _Sum] = {}

    def carry(self, gradients: Sequence[Array]) -> None:
        for edge, gradient in zip(self._edges, gradients, strict=True):
            self._deliver(edge, gradient, own=False)
        while self._nodes:
            node = self._nodes.pop()
            arrived = [self._take((node, output)) for output in range(len(node.outputs))]
            for edge, (gradient, own) in zip(node.edges, self._run(node, arrived), strict=True):
                self._deliver(edge, gradient, own)

    def _run(self, node: Node, arrived: list[Gradient]) -> Sequence[tuple[Gradient, bool]]:
        """Return the gradients along the node's edges, and whether each is held nowhere else."""
        pullback = node.pullback
        if pullback is None:
            raise RuntimeError(
                "a backward pass has been here before and has freed what it used; for another "
                "one call backward(retain_graph=True) the first time"
            )
        apart = node.apart
        if not self._retain:
            node.pullback = node.apart = None
        if all(gradient is None for gradient in arrived):
            return [(None, False)] * len(node.edges)
        if self._later is None or apart is None or arrived[0] is None:
            results = pullback(arrived)
        else:
            ways = zip(node.edges, apart, strict=True)
            results = [self._now_or_later(target, f, arrived[0]) for (target, _), f in ways]
        return [(result, _is_new(result, results, arrived)) for result in results]

    def _now_or_later(self, target: Any, pullback: Pullback, arrived: Array) -> Gradient:
        if self._later is None or isinstance(target, Node) or id(target) in self._now:
            return pullback(arrived)
        self._later.append((target, pullback, arrived))
        self._left.add(id(target))
        return None

    def _take(self, edge: tuple[Node, int]) -> Gradient:
        """Return the sum for a node's output, after its hooks."""
        node, output = edge
        arrived = self._sums.pop(edge, None)
        if arrived is None or arrived.total is None:
            return None
        return _hooked(arrived.total, node.hooks.get(output))

    def _deliver(self, edge: Edge, gradient: Gradient, own: bool) -> None:
        target, output = edge
        if gradient is not None:
            dtype = target.data.dtype if isinstance(target, Variable) else target.outputs[output][1]
            self._sums.setdefault(edge, _Sum()).add(*_of_dtype(gradient, own, dtype))
        if isinstance(target, Variable):
            self._awaited[target] -= 1
            if not self._awaited[target]:
                self._end(target, self._sums.pop(edge, _Sum()))

    def _end(self, leaf: Variable, arrived: _Sum) -> None:
        """Finish a leaf, unless more gradients come later: then its hooks wait for them."""
        if self._later is not None and arrived.total is not None and id(leaf) in self._left:
            self._later.append((leaf, lambda total: total, arrived.total))
        else:
            _finish(leaf, arrived, self._arrive)


def _of_dtype(gradient: Array, own: bool, dtype: Any) -> tuple[Array, bool]:
    """Return the gradient in this dtype, and whether the array is held nowhere else."""
    if gradient.dtype != dtype:
        return gradient.astype(dtype), True
    return np.asarray(gradient) if isinstance(gradient, np.generic) else gradient, own


def _is_new(result: Gradient, results: Sequence[Gradient], arrived: Sequence[Gradient]) -> bool:
    """Return whether a pullback's result is a new array that no other code will use."""
    if not isinstance(result, array_module(result).ndarray) or result.base is not None:
        return False
    others = sum(result is other for other in (*results, *arrived))
    return others == 1


def _hooked(gradient: Array, hooks: Mapping[int, Hook] | None) -> Array:
    from torsh_runtime.nn.tensor import Tensor

    for hook in [*(hooks or {}).values()]:
        replaced = hook(Tensor(gradient))
        if replaced is not None:
            gradient = replaced.data
    return gradient


def _accumulate(leaf: Tensor, gradient: Array, own: bool) -> None:
    """Add to the leaf's .grad, after its hooks and before its post-accumulate hooks."""
    from torsh_runtime.nn.tensor import Tensor

    if leaf.hooks:
        gradient, own = _hooked(gradient, leaf.hooks), False
    if leaf.grad is None:
        leaf.grad = Tensor(gradient if own else gradient.copy())
    else:
        leaf.grad.data += gradient
    for hook in [*leaf.accumulated.values()]:
        hook(leaf)
