"""Finds the layers of a framework, of which tensor/torch.py and tensor/nn.py are the two kits."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from torsh_runtime.framework import Module, framework_named
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.plan import Block, Entry

if TYPE_CHECKING:
    from torsh_runtime.parallel.tensor.layer import Layer
    from torsh_runtime.parallel.tensor.layers import ColumnParallelLinear, RowParallelLinear

_HOME = "torsh_runtime.parallel.tensor"


class Kit(Protocol):
    """Declares what a framework's layers are for."""

    BLOCKS: tuple[type, ...]
    """The framework's blocks that Block() is for."""
    ColumnParallelLinear: type[ColumnParallelLinear]
    RowParallelLinear: type[RowParallelLinear]

    def kind_of(self, where: str, module: Any, entry: Any) -> type[Layer]:
        """Return the class that a module becomes. Raises ConfigError for an entry that is not for
        it."""

    def within_block(self, module: Any, entry: Block, ranks: int) -> dict[str, Entry]:
        """Return what the entry means for the modules below a block."""

    def is_around(self, module: Any, entry: Entry) -> bool:
        """Return whether an entry is carried out around the module's own forward()."""

    def refuse_changes(self) -> None:
        """Make modules refuse to have layers and parameters replaced that have been cut."""

    def watch_features(self, model: Any, axis: Axis) -> None:
        """Make the model refuse, in its first forward pass, to mix features that are on different
        ranks."""

    def count_all_tokens(self, model: Module, axis: Axis) -> None:
        """Let the model's losses of the balance of experts count the tokens of all ranks."""

    def number_of_experts(self, module: Any, counts: Iterable[str]) -> int:
        """Return the number of experts, all of whose parameters a module has. Raises ConfigError
        if that is unknown."""


def layers_of(framework: str | None) -> Kit:
    """Return the layers of "torch" or "nn". None is torch if that is loaded. Raises ConfigError
    for other names."""
    found: Any = import_module(f"{_HOME}.{framework_named(framework).name}")
    kit: Kit = found
    return kit
