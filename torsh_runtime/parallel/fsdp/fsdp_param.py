"""Manages one parameter in its unit."""

from __future__ import annotations

from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Framework, Values
from torsh_runtime.framework.models import kind_of, on_gradient, shaped
from torsh_runtime.framework.protocol import Call
from torsh_runtime.parallel.fsdp.flat import FlatParameter
from torsh_runtime.parallel.fsdp.storage import StorageStrategy


class FSDPParam:
    """Gives a parameter whole values, or those that are this rank's, and the gradient with them."""

    def __init__(
        self,
        framework: Framework,
        flat: FlatParameter,
        memory: StorageStrategy,
        number: int,
        keeps_shape: bool,
    ) -> None:
        """Create the parameter's views. keeps_shape: this rank has all of it."""
        self._framework, self._flat, self.memory, self.number = framework, flat, memory, number
        self.parameter = flat.parameters[number]
        self._stop_following: Call | None = None
        self._keeps_shape = keeps_shape
        self._view = self._shaped(memory.whole)
        self._own = self._part(memory.shard)
        self._gradient: Any = None
        self._kept: Any = None
        self.adds = False

    @property
    def has_gradient(self) -> bool:
        """Return whether there was a gradient before the present backward pass."""
        return self._gradient is not None

    @property
    def has_kept(self) -> bool:
        """Return whether a gradient is kept to be averaged later."""
        return self._kept is not None

    @property
    def has_come(self) -> bool:
        """Return whether a backward pass has left a gradient, while the parameter is whole."""
        return self.parameter.grad is not None

    @property
    def is_trained(self) -> bool:
        """Return whether gradients of its kind are reduced."""
        return self._flat.is_trained

    @property
    def is_new(self) -> bool:
        """Return whether it wants gradients that no hook follows yet."""
        return self._stop_following is None and self.parameter.requires_grad

    def follow(self, call: Call) -> None:
        """Call it when a gradient has come, and nothing that was to be called before."""
        if self._stop_following is not None:
            self._stop_following()
            self._stop_following = None
        if self.parameter.requires_grad:
            self._stop_following = on_gradient(self.parameter, call)

    def take_over(self) -> None:
        """Take the values that a program has given the parameter as memory of its own, as by
        `parameter.data = values`. Raises ConfigError for those of another shape or dtype."""
        parameter, own = self.parameter, self._own
        if self._framework.is_at(parameter.data, own):
            return
        shape, kind = tuple(parameter.shape), kind_of(parameter)
        if shape != tuple(own.shape) or kind != kind_of(own):
            raise ConfigError(
                f"parameter {self._flat.names[self.number]!r} has become {kind[0]} {shape} on "
                f"{kind[1]} since the model was wrapped, and this rank's part of it is "
                f"{kind_of(own)[0]} {tuple(own.shape)} on {kind_of(own)[1]}: move and "
                f"cast a model, as by .to(dtype), before it is wrapped, and change whole "
                f"parameters within summon_full_params()"
            )
        own[...] = parameter.data
        parameter.data = own

    def fill(self) -> None:
        """Put this rank's part of its values into memory."""
        values = self.parameter.data.reshape(-1)
        first, last = self._flat.share(self.number)
        self._own.reshape(-1)[...] = values[first:last]

    def be_whole(self) -> None:
        self._show(self._view)

    def be_copied(self, full: Any) -> None:
        """Show the parameter whole in other memory, `full`."""
        self._show(self._shaped(full))

    def be_own(self) -> None:
        self._framework.watch(self.parameter, None)
        self.parameter.grad = None
        self.parameter.data = self._own
        if self._gradient is not None:
            self._framework.set_gradient(self.parameter, self._gradient)

    def keep(self) -> None:
        """Keep this rank's whole gradient until one is to be averaged."""
        gradient = self._taken()
        if self._kept is None:
            self._kept = gradient
        elif gradient is not None:
            self._kept += gradient

    def take(self, is_again: bool) -> None:
        """Give the gradient to be averaged; is_again: in addition to one that is on its way."""
        self.keep()
        gradient, self._kept = self._kept, None
        if not is_again:
            self.adds = self._gradient is not None
            if self.adds and not self._framework.is_at(self._gradient, self._average()):
                self._average()[...] = self._gradient
        self.memory.take(self.number, gradient, self.adds or is_again)
        if not self.adds:
            self._gradient = self._average()

    def give(self, is_shown: bool) -> None:
        """Take the average as the gradient, after it has been reduced."""
        self._gradient = self._average()
        if is_shown:
            self._framework.set_gradient(self.parameter, self._gradient)

    def forget_kept(self) -> None:
        """Drop what keep() has."""
        self._kept = None

    def void(self) -> None:
        """Remove the gradient of the parameter."""
        self._gradient = self.parameter.grad = None

    def _show(self, values: Any) -> None:
        self._framework.watch(self.parameter, None)
        self._gradient = self._taken()
        self.parameter.data = values

    def _taken(self) -> Values | None:
        """Take the values of the parameter's gradient away from it."""
        gradient, self.parameter.grad = self.parameter.grad, None
        return None if gradient is None else gradient.data

    def _average(self) -> Any:
        return self._part(self.memory.gradients)

    def _part(self, own: Any) -> Any:
        """Return this parameter's part of what this rank has of the unit."""
        if self._keeps_shape:
            return self._shaped(own)
        first, last = self._flat.span(self.number)
        further = len(self._flat.shapes[self.number]) - 1  # which programs group parameters by
        return shaped(own, first, (last - first, *(1,) * further))

    def _shaped(self, whole: Any) -> Any:
        start, shape = self._flat.starts[self.number], self._flat.shapes[self.number]
        return shaped(whole, start, shape)
