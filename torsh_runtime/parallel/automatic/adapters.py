"""Plans for layers around which adapters of low rank have been put, as by peft.

Such a layer keeps the layer that it adapts as `base_layer`. It adds lora_B(lora_A(input)) to that
layer's output. A plan is made as if the layers were not adapted, and is then extended to the
adapters: where outputs are cut, so is lora_B, and where inputs are cut, so is lora_A. The rest is
whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, Tensor
from torsh_runtime.parallel.tensor.plan import Column, Cut, Entry, Part, Row, Shared

_BASE, _DOWN, _UP, _DROPOUT = "base_layer", "lora_A", "lora_B", "lora_dropout"


def adapted_in(modules: Mapping[str, Module]) -> dict[str, Any]:
    """Return the layers that have adapters, by name."""
    return {name: each for name, each in modules.items() if _BASE in each._modules}


def without_adapters(named: Mapping[str, Any], adapted: Mapping[str, Any]) -> dict[str, Any]:
    """Return modules or parameters under the names they would have without adapters."""
    found = {}
    for name, each in named.items():
        where = next((where for where in adapted if name.startswith(f"{where}.")), None)
        if where is None:
            found[name] = each._modules[_BASE] if name in adapted else each
            continue
        first, _, rest = name.removeprefix(f"{where}.").partition(".")
        if first == _BASE and rest:
            found[f"{where}.{rest}"] = each
    return found


def with_adapters(
    plan: Mapping[str, Entry], adapted: Mapping[str, Any], parameters: Mapping[str, Tensor]
) -> dict[str, Entry]:
    """Extend a plan for layers without adapters to these.

    Raises ConfigError for other kinds of adapters on layers that are cut, and for adapted layers
    whose entry does not apply to adapters.
    """
    found: dict[str, Entry] = {}
    for name, entry in plan.items():
        where = name if name in adapted else name.rpartition(".")[0]
        if where not in adapted:
            found[name] = entry
            continue
        _check(where, adapted[where])
        found[f"{where}.{_BASE}{name.removeprefix(where)}"] = entry
        if name == where:
            found |= _of_layer(where, adapted[where], entry)
        elif name == f"{where}.weight":
            found |= _of_weight(where, entry, parameters)
    return found


def _of_layer(where: str, layer: Module, entry: Entry) -> dict[str, Entry]:
    """Return the entries for adapters of a layer that is called."""
    if not isinstance(entry, Column | Row):
        raise ConfigError(
            f"{where!r} has adapters, and {type(entry).__name__}() is said of it, which is not "
            f"known of adapters: leave it out of target_modules, or give a plan without it"
        )
    if entry.sequence_dim is not None:
        raise ConfigError(
            f"{where!r} has adapters, which would see tokens of this rank or of all: leave out "
            f"sequence=True"
        )
    named = layer._modules
    cut = _UP if isinstance(entry, Column) else _DOWN
    found: dict[str, Entry] = {f"{where}.{cut}.{name}": entry for name in named[cut]._modules}
    if isinstance(entry, Row) and entry.input_is_parallel:
        for name, each in named[_DROPOUT]._modules.items():
            if isinstance(getattr(each, "p", None), float):
                found[f"{where}.{_DROPOUT}.{name}"] = Part(-1)
    return found


def _of_weight(where: str, entry: Entry, parameters: Mapping[str, Tensor]) -> dict[str, Entry]:
    """Return the entries for a layer within a part of a sum, whose parameters the plan names."""
    dim = entry.dim % 2 if isinstance(entry, Cut) else None
    found: dict[str, Entry] = {}
    for name in parameters:
        if name.startswith(f"{where}.{_DOWN}."):
            found[name] = entry if dim == 1 else Shared()
        if name.startswith(f"{where}.{_UP}."):
            is_added = dim == 1 and name.endswith(".bias")
            found[name] = entry if dim == 0 else Shared(divided=is_added)
    return found


def _check(where: str, layer: Module) -> None:
    """Raise ConfigError for adapters that use more than the layer's output."""
    own = layer._modules
    if _UP not in own or not own[_UP]._modules:
        raise ConfigError(
            f"{where!r} is adapted by {type(layer).__module__}.{type(layer).__name__}, which is "
            f"not known of layers that are cut: LoRA of linear layers is. Leave it out of "
            f"target_modules, or merge it first"
        )
    if len(getattr(own.get("lora_magnitude_vector"), "_modules", ())):
        raise ConfigError(
            f"{where!r} has adapters with magnitudes (DoRA), which are computed of whole weights: "
            f"say use_dora=False"
        )
