"""Makes the optimizer that a DeepSpeed configuration names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.deepspeed.named import with_known

_OF_ADAM = ("torch_adam", "adam_w_mode", "bias_correction", "fp32_optimizer_states")
_KINDS_OF_STEP = {"foreach", "fused", "capturable", "differentiable"}
_LOWER = {"adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "sgd": "SGD"}


def check_optimizer(kind: str, params: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown optimizer, or for arguments that it does not take."""
    made, named = _class_and_arguments(kind, params)
    with_known(f"optimizer.params of {kind}", made, named)


def make_optimizer(kind: str, params: Mapping[str, Any], parameters: Any) -> Any:
    """Make the optimizer of this name for parameters, or for groups of them.

    Raises ConfigError if it rejects its arguments.
    """
    made, named = _class_and_arguments(kind, params)
    parameters = [*parameters]
    if "fused" not in params and not _can_be_fused(parameters):
        named.pop("fused", None)
    try:
        return made(parameters, **named)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer.params do not make a {kind}: {error}") from None


def _can_be_fused(parameters: list[Any]) -> bool:
    """Return whether torch has a fused step for these parameters, or groups of them."""
    groups = [each["params"] if isinstance(each, dict) else [each] for each in parameters]
    return all(isinstance(each, list) for each in groups) and all(
        parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda")
        for group in groups
        for parameter in group
    )


def _class_and_arguments(kind: str, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    name = _LOWER.get(kind.lower(), kind)
    named = {key: tuple(v) if isinstance(v, list) else v for key, v in params.items()}
    if name in ("Adam", "AdamW"):
        is_torch, is_decoupled = named.get("torch_adam"), named.get("adam_w_mode", True)
        named = {key: value for key, value in named.items() if key not in _OF_ADAM}
        name = "AdamW" if name == "AdamW" or is_decoupled else "Adam"
        if not is_torch:
            named.setdefault("weight_decay", 0.0)
            if named.keys().isdisjoint(_KINDS_OF_STEP):
                named["fused"] = True  # as DeepSpeed's own are
    found = getattr(torch.optim, name, None)
    if not inspect.isclass(found) or not issubclass(found, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer.type is {kind!r}, which torch.optim has not: such as Adam, AdamW or SGD"
        )
    return found, named
