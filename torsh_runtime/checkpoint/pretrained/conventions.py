"""How transformers names what it writes. It is loaded here alone, where a model of it is there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import torch

from torsh_runtime.errors import ConfigError


def check_model(model: Any) -> None:
    """ConfigError for what save_pretrained() of transformers would not write as it is."""
    kind = type(model).__name__
    if not (hasattr(model, "save_pretrained") and hasattr(model, "config")):
        raise ConfigError(
            f"a {kind} is no model of transformers: write what tr.whole_state_dict(model) gives "
            f"rank 0, or save with a tr.checkpoint.Checkpointer and export that"
        )
    if getattr(model, "_hf_peft_config_loaded", False) or hasattr(model, "peft_config"):
        raise ConfigError(
            f"the {kind} has adapters: pass peft's model.save_pretrained(path, "
            f"state_dict=state, is_main_process=rank == 0) what tr.whole_state_dict(model) gives"
        )
    if getattr(model, "hf_quantizer", None) is not None:
        raise ConfigError(f"the {kind} is quantised: save it before it is cut")


def names_to_save(model: Any, names: Iterable[str], aliases: Mapping[str, str]) -> list[str]:
    """Of all names those that are written: without what the model leaves out, and without names of
    tied parameters that it gives back itself when it is loaded."""
    left_out = {*(getattr(model, "_keys_to_ignore_on_save", None) or ())}
    found = [name for name in names if name not in left_out]
    patterns = _tied(model)
    groups: dict[str, list[str]] = {}
    for name in found:
        groups.setdefault(aliases.get(name, name), []).append(name)
    for group in groups.values():
        known = [name for name in sorted(group) if any(re.search(p, name) for p in patterns)]
        left_out |= {*known[: len(group) - 1]}
    return [name for name in found if name not in left_out]


def _tied(model: Any) -> list[str]:
    """Patterns of names, as dicts (transformers 5) or lists tell them."""
    return [
        f"{name}.{key}" if name else key
        for name, module in model.named_modules()
        for key in getattr(module, "_tied_weights_keys", None) or ()
    ]


def as_written(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under the names, and in the pieces, that files have: what loading converts is
    converted back."""
    revert = getattr(_core(), "revert_weight_conversion", None)
    if revert is None:
        return tensors
    found: dict[str, torch.Tensor] = revert(model, tensors)
    return found


def _core() -> Any:
    """Where transformers 5 converts weights; None before."""
    try:
        return import_module("transformers.core_model_loading")
    except ImportError:
        return None
