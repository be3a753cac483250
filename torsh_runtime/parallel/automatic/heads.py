"""Finds the modules of each attention, and the number of its heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torsh_runtime.framework import Module
from torsh_runtime.parallel.automatic.families import COUNTS

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_heads")


@dataclass(frozen=True, slots=True)
class Attention:
    """Describes an attention of a model."""

    where: str
    heads: int
    """Number of heads of queries."""
    key_value_heads: int
    family: str
    """The model type."""


def attentions_of(modules: Mapping[str, Module]) -> dict[str, Attention]:
    """Return the attention to which each module of a list of layers belongs, by module name."""
    found: dict[str, Attention] = {}
    known: dict[str, Attention | None] = {}
    for name in modules:
        where = _outermost(name, modules)
        if where is None:
            continue
        if where not in known:
            known[where] = _read(where, modules)
        attention = known[where]
        if attention is not None:
            found[name] = attention
    return found


def _outermost(name: str, modules: Mapping[str, Module]) -> str | None:
    """Return the outermost of the module and those around it that is called an attention."""
    parts = name.split(".")
    first = next((at for at, part in enumerate(parts) if part.isdigit()), len(parts))
    for end in range(first + 2, len(parts) + 1):
        where = ".".join(parts[:end])
        told = f"{parts[end - 1]} {type(modules[where]).__name__}".lower()
        if "attention" in told or "attn" in told.split()[0]:
            return where
    return None


def _read(where: str, modules: Mapping[str, Module]) -> Attention | None:
    inner = [each for name, each in modules.items() if f"{name}.".startswith(f"{where}.")]
    config = _config(where, modules)
    heads = _first([*inner, config], _HEADS)
    if heads is None:
        return None
    keys = _first([*inner, config], _KEY_VALUE_HEADS) or heads
    return Attention(where, heads, keys, _family(where, modules))


def _family(where: str, modules: Mapping[str, Module]) -> str:
    """Return the type of the outermost known model around it, or else of the innermost one."""
    parts, found = where.split("."), ""
    for end in range(len(parts)):
        config = getattr(modules[".".join(parts[:end])], "config", None)
        found = getattr(config, "model_type", found)
        if found in COUNTS:
            break
    return found


def _config(where: str, modules: Mapping[str, Module]) -> Any:
    """Return the config of the module or of the nearest module around it that has one."""
    parts = where.split(".")
    for end in range(len(parts), -1, -1):
        config = getattr(modules[".".join(parts[:end])], "config", None)
        if config is not None:
            return config
    return None


def _first(owners: list[Any], names: tuple[str, ...]) -> int | None:
    for owner in owners:
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None
