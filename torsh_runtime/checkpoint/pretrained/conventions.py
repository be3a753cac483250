"""Wraps what transformers decides about its files. Only used when transformers is installed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from torsh_runtime.errors import ConfigError


def check_model(model: Any) -> None:
    """Raise ConfigError for models that transformers' save_pretrained() would change."""
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


def model_itself(model: Any) -> Any:
    """Return the model, or for a pipeline stage its copy of the model."""
    return vars(model).get("_own", model)


def names_to_save(model: Any, names: Iterable[str], aliases: Mapping[str, str]) -> list[str]:
    """Return the names that are written.

    These are `names` without those that the model ignores on save, and without names of tied
    parameters that the model restores itself when it is loaded.
    """
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
    """Return patterns of tied names, which transformers 5 has in dicts, earlier ones in lists."""
    return [
        f"{name}.{key}" if name else key
        for name, module in model.named_modules()
        for key in getattr(module, "_tied_weights_keys", None) or ()
    ]


def as_written(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors under the names and in the pieces that files have.

    This reverses the conversion that loading performs.
    """
    revert = getattr(_core(), "revert_weight_conversion", None)
    if revert is None:
        return tensors
    found: dict[str, torch.Tensor] = revert(model, tensors)
    return found


def _core() -> Any:
    """Return the module with which transformers 5 converts weights; None in earlier versions."""
    try:
        return import_module("transformers.core_model_loading")
    except ImportError:
        return None


def weight_files(path: str, options: Mapping[str, Any]) -> list[Path]:
    """Return the files with a model's weights, downloading them if they are in the hub.

    Raises ConfigError if there are none in safetensors' format.
    """
    hub: Any = import_module("transformers.utils.hub")
    names = ("subfolder", "revision", "cache_dir", "token", "local_files_only")
    told = {name: options[name] for name in names if name in options}
    variant = f".{options['variant']}" if options.get("variant") else ""

    def found(name: str) -> str | None:
        file = hub.cached_file(path, name, _raise_exceptions_for_missing_entries=False, **told)
        return None if file is None else str(file)

    single = found(f"model{variant}.safetensors")
    if single:
        return [Path(single)]
    index = found(f"model.safetensors.index{variant}.json")
    if not index:
        raise ConfigError(
            f"{path} has no weights in safetensors' format (model{variant}.safetensors): load it "
            f"whole, save_pretrained() it, and load what that has written"
        )
    parts, _ = hub.get_checkpoint_shard_files(path, index, **told)
    return [Path(each) for each in parts]


def opened_model(
    model_class: Any, path: str, tensors: Mapping[str, torch.Tensor], options: Mapping[str, Any]
) -> Any:
    """Return the model that the class's from_pretrained() builds from these tensors."""
    named = {name: each for name, each in options.items() if name not in ("variant",)}
    config = named.pop("config", None)
    if config is None or isinstance(config, str):
        auto: Any = import_module("transformers").AutoConfig
        own = getattr(model_class, "config_class", None) or auto
        config, named = own.from_pretrained(config or path, return_unused_kwargs=True, **named)
    kind = model_class
    if not hasattr(model_class, "_from_config"):
        with torch.device("meta"):
            kind = type(model_class.from_config(config))
    model = kind.from_pretrained(None, config=config, state_dict=dict(tensors), **named)
    generation = getattr(model, "generation_config", None)
    if generation is not None and model.can_generate():
        with suppress(OSError):  # there is none
            model.generation_config = type(generation).from_pretrained(path)
    return model
