"""Refuses modules and parameters that take the place of those of which ranks have parts."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import nn
from torch.nn.modules import module as modules

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.torch.marks import marks_of
from torsh_runtime.parallel.tensor.layer import Layer
from torsh_runtime.parallel.tensor.parts import mark_part
from torsh_runtime.parallel.tensor.plan import (
    Attention,
    Column,
    Heads,
    Own,
    Row,
    Summed,
    Vocabulary,
)

_FIRST = "before, and call tr.parallelize() then"


@cache
def refuse_changes() -> None:
    """Have torch ask whenever a module or a parameter becomes part of another module."""
    modules.register_module_module_registration_hook(_check_module)
    modules.register_module_parameter_registration_hook(_check_parameter)


def _check_module(owner: Any, name: str, new: Any) -> None:
    """Raise ConfigError for adapters of a layer that is cut, which would know nothing of parts, and
    for a module in the place of a layer whose input or output is a part."""
    if name == "base_layer" and _is_cut(new):
        raise ConfigError(
            f"{new.where!r} is given adapters after it was cut, and these know nothing of parts: "
            f"add them {_FIRST}, as by get_peft_model()"
        )
    if isinstance(owner, nn.ModuleDict) and not isinstance(new, Layer):
        layers: list[Any] = [*owner.values()]
        others = [each.where for each in layers if _is_cut(each)]
        if any(".lora_" in each for each in others):
            raise ConfigError(
                f"{name!r} is one more adapter beside {others[0]!r}, which has been cut: add all "
                f"adapters {_FIRST}"
            )
    old = owner._modules.get(name)
    if not _is_cut(old) or _is_whole_outside(old) or not isinstance(new, nn.Module):
        return
    if not any(each is old for each in new.modules()):
        raise ConfigError(
            f"{old.where!r} has been cut, and a {type(new).__name__} in its place would not know "
            f"that its input or its output is this rank's part: replace it {_FIRST}"
        )


def _is_cut(module: Any) -> bool:
    return isinstance(module, Layer) and hasattr(module, "axis") and module.axis.size > 1


def _is_whole_outside(layer: Any) -> bool:
    """Return whether its input and output are whole, so that a whole module may replace it."""
    entry = layer.own.entry if isinstance(getattr(layer, "own", None), Own) else layer.entry
    if getattr(entry, "sequence_dim", None) is not None:
        return False
    if isinstance(entry, Column):
        return entry.gather_output
    if isinstance(entry, Row):
        return not entry.input_is_parallel
    return isinstance(entry, Attention | Heads | Summed | Vocabulary)


def _check_parameter(owner: Any, name: str, new: Any) -> None:
    """Raise ConfigError for a parameter of another size in the place of a part. One of this size is
    marked as a part."""
    if not _is_cut(owner) or new is None or name not in owner.parameter_layouts:
        return
    old, layout = owner._parameters.get(name), owner.parameter_layouts[name]
    if old is not None and old.shape != new.shape:
        raise ConfigError(
            f"{owner.where!r} has a part of shape {tuple(old.shape)} of its {name} of shape "
            f"{tuple(layout.shape)}, and was given one of shape {tuple(new.shape)}: replace it "
            f"{_FIRST}, or give it whole to load_state_dict()"
        )
    if marks_of(new) is None:
        mark_part(new, layout, owner.axis, f"{owner.where}.{name}")
