"""Registers hooks of a module, and calls it with them in torch's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torsh_runtime.nn.graph import Gradient, Variable, derived_several, needs_gradient
from torsh_runtime.nn.hooks import RemovableHandle
from torsh_runtime.nn.tensor import Tensor

if TYPE_CHECKING:
    from torsh_runtime.nn.module import Module

Watch = Callable[[list[Gradient]], Sequence[Gradient]]


class Hooked:
    """Registers hooks around the calls of a module; see Module."""

    _forward_pre_hooks: dict[int, Callable[..., Any]]
    _forward_hooks: dict[int, Callable[..., Any]]
    _backward_pre_hooks: dict[int, Callable[..., Any]]
    _backward_hooks: dict[int, Callable[..., Any]]

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False
    ) -> RemovableHandle:
        """Call hook(module, args) before forward.

        What it returns, unless None, replaces the args.

        Args:
            hook: The function.
            prepend: Whether to call it before the existing hooks.

        Returns:
            A handle that removes the hook.
        """
        hooks = self._forward_pre_hooks
        handle = RemovableHandle(hooks, hook)
        for key in [*hooks][:-1] if prepend else ():
            hooks[key] = hooks.pop(key)
        return handle

    def register_forward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(module, args, output) after forward, and return a handle that removes it.

        What it returns, unless None, replaces the output.

        Example:
            ```python
            handle = model.register_forward_hook(lambda module, args, output: print(output.shape))
            model(batch)
            handle.remove()
            ```
        """
        return RemovableHandle(self._forward_hooks, hook)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(module, grad_output) when the gradients of the outputs are known.

        What it returns, unless None, takes their place. The result is a handle that removes the
        hook.
        """
        return RemovableHandle(self._backward_pre_hooks, hook)

    def register_full_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(module, grad_input, grad_output) when the gradients of the arguments are known.

        These are the tensors among args. What it returns, unless None, takes the place of
        grad_input. The result is a handle that removes the hook.
        """
        return RemovableHandle(self._backward_hooks, hook)


def call(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return module.forward(*args, **kwargs), calling all hooks."""
    for hook in [*module._forward_pre_hooks.values()]:
        changed = hook(module, args)
        if changed is not None:
            args = changed if isinstance(changed, tuple) else (changed,)
    gates = _Gates(module) if module._backward_hooks or module._backward_pre_hooks else None
    if gates is not None:
        args = gates.around_inputs(args)
    output = module.forward(*args, **kwargs)
    for hook in [*module._forward_hooks.values()]:
        changed = hook(module, args, output)
        output = output if changed is None else changed
    return output if gates is None else gates.around_outputs(output)


class _Gates:
    """Intercepts the gradients of one call's outputs and inputs."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._of_outputs: tuple[Any, ...] = ()
        self._inputs_pass = False

    def around_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self._inputs_pass = any(map(needs_gradient, args))
        return _through(args, self._inputs_known) if self._inputs_pass else args

    def around_outputs(self, output: Any) -> Any:
        if isinstance(output, tuple):
            return _through(output, self._outputs_known)
        return _through((output,), self._outputs_known)[0]

    def _outputs_known(self, gradients: list[Gradient]) -> Sequence[Gradient]:
        self._of_outputs = _tensors(gradients)
        for hook in [*self._module._backward_pre_hooks.values()]:
            changed = hook(self._module, self._of_outputs)
            if changed is not None:
                self._of_outputs = changed if isinstance(changed, tuple) else (changed,)
        if not self._inputs_pass:
            self._call_hooks((None,))
        return _arrays(self._of_outputs)

    def _inputs_known(self, gradients: list[Gradient]) -> Sequence[Gradient]:
        return _arrays(self._call_hooks(_tensors(gradients)))

    def _call_hooks(self, of_inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in [*self._module._backward_hooks.values()]:
            changed = hook(self._module, of_inputs, self._of_outputs)
            if changed is not None:
                of_inputs = changed if isinstance(changed, tuple) else (changed,)
        return of_inputs


def _through(values: tuple[Any, ...], watch: Watch) -> tuple[Any, ...]:
    """Return the values, with the tensors passed through one operation that changes nothing."""
    tensors = [value for value in values if isinstance(value, Variable)]
    passed = iter(derived_several([tensor.data for tensor in tensors], tensors, watch))
    return tuple(next(passed) if isinstance(value, Variable) else value for value in values)


def _tensors(gradients: Sequence[Gradient]) -> tuple[Tensor | None, ...]:
    return tuple(None if gradient is None else Tensor(gradient) for gradient in gradients)


def _arrays(gradients: Sequence[Any]) -> list[Gradient]:
    return [None if gradient is None else gradient.data[...] for gradient in gradients]
