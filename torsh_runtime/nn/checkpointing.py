"""Implements activation checkpointing: activations are discarded and computed again when needed.

See Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torsh_runtime.nn.backward import gradients_of, leaves
from torsh_runtime.nn.grad_mode import enable_grad, is_grad_enabled
from torsh_runtime.nn.graph import Gradient, Variable, derived_several
from torsh_runtime.nn.random import get_rng_state, set_rng_state


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Return function(*args), keeping only arguments and results in memory.

    The backward pass calls the function again, with the random state of the first call. The leaves
    that it uses besides its arguments get their gradients in the same backward pass, so their hooks
    are called once.

    Args:
        function: A function that returns a tensor or a tuple of tensors.
        *args: Its arguments.

    Raises:
        TypeError: If the function returns something else.

    Example:
        ```python
        for block in model.blocks:
            x = tr.nn.checkpoint(block, x)
        ```
    """
    if not is_grad_enabled():
        return function(*args)
    state = get_rng_state()
    returned, results, inputs = _called(function, args)
    arguments = [arg for arg in args if isinstance(arg, Variable)]
    own = {id(tensor) for tensor in inputs}
    others = [leaf for leaf in leaves(results) if id(leaf) not in own]

    def pullback(gradients: list[Gradient]) -> Sequence[Gradient]:
        again, wanted = _again(function, args, state)
        pairs = [p for p in zip(again, gradients, strict=True) if p[1] is not None]
        tensors = [tensor for tensor, _ in pairs if tensor.requires_grad]
        weights = [weight for tensor, weight in pairs if tensor.requires_grad]
        return gradients_of(tensors, weights, [*wanted, *others])

    arrays = [result.data for result in results]
    outputs = derived_several(arrays, [*arguments, *others], pullback)
    return tuple(outputs) if isinstance(returned, tuple) else outputs[0]


def _called(
    function: Callable[..., Any], args: Sequence[Any]
) -> tuple[Any, Sequence[Any], list[Variable]]:
    """Return the function's result, the result as a sequence, and the leaves that replaced
    arguments."""
    stand_ins = [_cut(arg) for arg in args]
    returned = function(*stand_ins)
    results = returned if isinstance(returned, tuple) else (returned,)
    if not all(isinstance(result, Variable) for result in results):
        raise TypeError("a checkpointed function returns a tensor or a tuple of tensors")
    return returned, results, [one for one in stand_ins if isinstance(one, Variable)]


def _cut(argument: Any) -> Any:
    """Return a leaf with the same array."""
    if not isinstance(argument, Variable):
        return argument
    return argument.detach().requires_grad_(argument.requires_grad)  # type: ignore[attr-defined]


def _again(
    function: Callable[..., Any], args: Sequence[Any], state: dict[str, Any]
) -> tuple[Sequence[Any], list[Variable]]:
    """Compute the results and their inputs again, and restore the current random state
    afterwards."""
    present = get_rng_state()
    set_rng_state(state)
    try:
        with enable_grad():
            _, results, inputs = _called(function, args)
    finally:
        set_rng_state(present)
    return results, inputs
