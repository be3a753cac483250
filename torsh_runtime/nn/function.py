"""Defines operations with their own backward pass, such as collectives within the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torsh_runtime.nn.arrays import Array, array_module
from torsh_runtime.nn.grad_mode import no_grad
from torsh_runtime.nn.graph import Gradient, Variable, derived_several, needs_gradient
from torsh_runtime.nn.tensor import Tensor


class Context:
    """Passes values from a Function's forward to its backward. Further attributes may be set.

    Attributes: needs_input_grad (of each argument of forward), saved_tensors.
    """

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(needs_gradient(argument) for argument in arguments)
        self.saved_tensors: tuple[Any, ...] = ()
        self._materialize = True
        self._constant: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors until the backward pass has used them."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Mark results that have no gradients."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether backward gets zeros (the default) or None for results that nothing used."""
        self._materialize = value

    def is_constant(self, result: Any) -> bool:
        """Return whether the result was marked as non-differentiable."""
        return any(result is one for one in self._constant)

    def given(self, gradient: Gradient, result: Array) -> Tensor | None:
        """Return a gradient in the form in which backward gets it."""
        if gradient is None and self._materialize:
            gradient = array_module(result).zeros_like(result)
        return None if gradient is None else Tensor(gradient)


class Function:
    """Defines an operation with a backward pass of its own, to be called by apply().

    Subclasses define the static methods forward(ctx, *arguments), whose result, a tensor or
    several, is computed without being recorded, and backward(ctx, *gradients), which returns for
    each argument a gradient or None, as in torch.

    Raises:
        RuntimeError: In the backward pass, if backward() returns a wrong number of gradients, or
            one of a wrong shape.

    Example:
        ```python
        class Double(tr.nn.Function):
            forward = staticmethod(lambda ctx, x: 2 * x)
            backward = staticmethod(lambda ctx, gradient: 2 * gradient)

        Double.apply(x)
        ```
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        """Compute the results; a subclass defines it.

        Args:
            ctx: Passes values to backward, such as by save_for_backward().
            *arguments: The arguments of apply().

        Raises:
            NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError("a Function defines forward(ctx, *arguments)")

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient of each argument of forward, or None; a subclass defines it.

        Args:
            ctx: The context of the forward pass.
            *gradients: The gradient of each result.

        Raises:
            NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError("a Function defines backward(ctx, *gradients)")

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """Return forward's results, through which gradients flow by way of backward.

        Args:
            *arguments: The arguments of forward after the context.

        Example:
            ```python
            doubled = Double.apply(x)  # of a subclass Double
            ```
        """
        context = Context(arguments)
        with no_grad():
            returned = cls.forward(context, *arguments)
        results = returned if isinstance(returned, tuple) else (returned,)
        outputs = cls._recorded(context, arguments, results)
        return outputs if isinstance(returned, tuple) else outputs[0]

    @classmethod
    def _recorded(
        cls, context: Context, arguments: Sequence[Any], results: Sequence[Any]
    ) -> tuple[Any, ...]:
        differentiable = [
            result
            for result in results
            if isinstance(result, Variable) and not context.is_constant(result)
        ]
        arrays = [result.data for result in differentiable]

        def pullback(gradients: list[Gradient]) -> list[Gradient]:
            pairs = zip(gradients, arrays, strict=True)
            returned = cls.backward(context, *[context.given(*pair) for pair in pairs])
            return cls._checked(returned, arguments)

        recorded = iter(derived_several(arrays, arguments, pullback))
        known = {id(result) for result in differentiable}
        return tuple(next(recorded) if id(result) in known else result for result in results)

    @classmethod
    def _checked(cls, returned: Any, arguments: Sequence[Any]) -> list[Gradient]:
        found = returned if isinstance(returned, tuple) else (returned,)
        if len(found) != len(arguments):
            raise RuntimeError(
                f"{cls.__name__}.backward() returned {len(found)} gradients, and forward() takes "
                f"{len(arguments)} arguments"
            )
        return [cls._array(*pair) for pair in zip(found, arguments, strict=True)]

    @classmethod
    def _array(cls, gradient: Any, argument: Any) -> Gradient:
        if gradient is None or not isinstance(argument, Variable):
            return None
        if gradient.shape != argument.data.shape:
            raise RuntimeError(
                f"{cls.__name__}.backward() returned a gradient of shape {gradient.shape} for an "
                f"argument of shape {argument.data.shape}"
            )
        # A view, as the function may keep the array: the walk does not write into views.
        return gradient.data[...]
