"""First values: of models on the meta device, which have none, made module by module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.models import is_meta, own_initialiser


class Initialiser:
    """Gives modules memory and values when they are needed, each once."""

    def __init__(self, model: Module, initialise: Callable[[Any], object] | None) -> None:
        self._framework, self._initialise = framework_of(model), initialise
        self._left = [each for each in model.named_modules() if is_meta(each[1])]

    def check(self) -> None:
        """Raise ConfigError for modules on the meta device that nothing can initialise."""
        if self._initialise is not None:
            return
        without = [repr(name) for name, m in self._left if own_initialiser(m) is None]
        if without:
            raise ConfigError(
                f"module(s) {', '.join(without[:5])} are on the meta device and have no "
                f"reset_parameters(): pass param_init_fn, which gives a module's tensors values"
            )

    def have(self, parameters: Sequence[Any]) -> bool:
        """Initialize the modules of these parameters, if that is still to do. Return whether it
        was for any."""
        wanted = {id(parameter) for parameter in parameters}
        found = [
            named
            for named in self._left
            if wanted & {id(own) for _, own in named[1].named_parameters(recurse=False)}
        ]
        for named in found:
            self._make(named)
        return bool(found)

    def have_all(self) -> None:
        """Initialize all modules that are left."""
        for named in [*self._left]:
            self._make(named)

    def _make(self, named: tuple[str, Any]) -> None:
        self._left.remove(named)
        module = named[1]
        call = self._initialise or own_initialiser(module)
        self._framework.materialise(module, lambda each: call(each) if call is not None else None)
