"""Refuses to use a model that has been cut: a rank trains its stages only, and the model's other
layers stay as they were.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module

if TYPE_CHECKING:
    import torch


def refuse_stale(model: Any, own: Module) -> None:
    """Make a torch model that has been cut raise ConfigError where it is called or saved.

    It raises only if parameters have changed since then, and all that have are also in `own`.
    """
    loaded = sys.modules.get("torch")
    if loaded is None or not isinstance(model, loaded.nn.Module):
        return
    refusal = _Refusal(model, own)
    if refusal.is_needed:
        model.register_forward_pre_hook(refusal)
        model.register_state_dict_pre_hook(refusal)


class _Refusal:
    """Checks a model as a hook. Copies of the model have it, too, and are not refused."""

    def __init__(self, model: torch.nn.Module, own: Module) -> None:
        here = {id(each) for each in own.parameters()}
        named = [*model.named_parameters()]
        self._model = id(model)
        self._versions = {name: each._version for name, each in named}
        self._own = {name for name, each in named if id(each) in here}

    @property
    def is_needed(self) -> bool:
        """Return whether other ranks train some of the parameters."""
        return len(self._own) < len(self._versions)

    def __call__(self, module: torch.nn.Module, *_: object) -> None:
        if id(module) != self._model:
            return
        named = module.named_parameters()
        changed = {name for name, each in named if each._version != self._versions.get(name)}
        if changed and changed <= self._own:
            raise ConfigError(
                f"this {type(module).__qualname__} has been cut into stages: this rank has trained "
                f"its own, and the other layers are as they were. Call the pipeline; to have the "
                f"model whole, as for generate() and save_pretrained(), save pipeline.module with "
                f"a Checkpointer and load that into a model in one process"
            )
