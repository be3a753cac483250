"""Gathers outputs of inner layers that transformers' models return, of which each rank has a
part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module
from torsh_runtime.parallel.tensor.plan import Heads, Own, Scatter, Summed

if TYPE_CHECKING:
    import torch

if TYPE_CHECKING:
    pass

_HEADS, _SEQUENCES = "output_attentions", "output_hidden_states"


def refuse_parts(modules: Iterable[torch.nn.Module], entries: Iterable[Any]) -> None:
    """Let the modules that are models raise ConfigError when they are asked for what would be this
    rank's part. entries: the plan's."""
    told = [entry.entry if isinstance(entry, Own) else entry for entry in entries]
    asked = {
        _HEADS: "heads" if any(isinstance(each, Heads | Summed) for each in told) else "",
        _SEQUENCES: "tokens" if any(isinstance(each, Scatter) for each in told) else "",
    }
    parts = {name: part for name, part in asked.items() if part}
    for module in modules if parts else ():
        config = getattr(module, "config", None)
        if all(hasattr(config, name) for name in parts) and hasattr(module, "base_model_prefix"):
            module.register_forward_pre_hook(partial(_refuse, parts), with_kwargs=True)


def _refuse(parts: Mapping[str, str], model: Module, given: Any, named: Mapping[str, Any]) -> None:
    config = getattr(model, "config", None)
    for name, part in parts.items():
        asked = named.get(name)
        if getattr(config, name) if asked is None else asked:
            raise ConfigError(
                f"{type(model).__name__} was called with {name}, and each rank has those of its "
                f"own {part} only: leave it out, or call the model before it is cut"
            )
