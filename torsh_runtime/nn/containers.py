"""Defines modules that contain modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

from torsh_runtime.nn.module import Module


class ModuleList(Module):
    """Holds a list of modules, named "0", "1" and so on.

    Example:
        ```python
        self.blocks = tr.nn.ModuleList(tr.nn.Linear(8, 8) for _ in range(4))
        for block in self.blocks:
            x = block(x)
        ```
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        """Create the list.

        Args:
            modules: The modules.
        """
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> Self:
        """Append a module and return the list."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Append several modules and return the list."""
        for module in modules:
            self.append(module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __getitem__(self, index: Any) -> Any:
        found = [*self][index]
        return self._of(found) if isinstance(found, list) else found

    def _of(self, modules: list[Module]) -> Self:
        return type(self)(modules)


class Sequential(ModuleList):
    """Calls each module with the result of the one before it.

    Example:
        ```python
        model = tr.nn.Sequential(tr.nn.Linear(8, 32), tr.nn.ReLU(), tr.nn.Linear(32, 2))
        model(tr.nn.randn(5, 8)).shape  # (5, 2)
        ```
    """

    def __init__(self, *modules: Module) -> None:
        """Create the module.

        Args:
            *modules: The modules, in order.
        """
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        """Return the result of the last module, of which the first got x."""
        for module in self:
            x = module(x)
        return x

    def _of(self, modules: list[Module]) -> Self:
        return type(self)(*modules)
