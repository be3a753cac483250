"""Keeps the gradient that a parameter had before it was held whole, unless a program drops it."""

from __future__ import annotations

from typing import Any

from torsh_runtime.framework.models import on_gradient


class FormerGradient:
    """Leaves a gradient where optimizers see it until a backward pass brings another one.

    The parameter has become whole meanwhile, and so does the gradient that comes.
    """

    def __init__(self, parameter: Any) -> None:
        """Follow the gradient that the parameter has now."""
        self._parameter, self._aside = parameter, None
        self._is_shown, self._has_come = True, False
        self._stops = [
            parameter.register_hook(self._before_gradient).remove,
            on_gradient(parameter, self._note),
        ]

    def drop(self) -> None:
        """Forget the gradient."""
        self._aside, self._is_shown = None, False

    def end(self) -> Any:
        """Take the gradient away from the parameter, and return its values if it is still there."""
        for stop in self._stops:
            stop()
        self._before_gradient()
        return None if self._aside is None else self._aside.data

    def _before_gradient(self, _: Any = None) -> None:
        """Put the gradient aside, as the next one has another shape."""
        if self._is_shown:
            self._aside, self._parameter.grad = self._parameter.grad, None
            self._is_shown = False
        elif self._has_come and self._parameter.grad is None:
            self._aside = None  # zero_grad() after a pass was meant for both

    def _note(self) -> None:
        self._has_come = True
