"""Models and tensors of any framework, as parallel code sees them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.protocol import Framework as FrameworkOf
from torsh_runtime.framework.surface import Module, Tensor
from torsh_runtime.framework.values import Values

if TYPE_CHECKING:
    import torch

    from torsh_runtime import nn
    from torsh_runtime.framework.torch import TorchFramework
    from torsh_runtime.nn.framework import NnFramework

    _checked_torch: FrameworkOf[torch.Tensor, torch.Tensor, torch.nn.Module] = TorchFramework()
    _checked_nn: FrameworkOf[nn.Tensor, Any, nn.Module] = NnFramework()

__all__ = [
    "Framework",
    "Module",
    "Tensor",
    "Values",
    "framework_named",
    "framework_of",
    "framework_of_model",
]

Framework: TypeAlias = FrameworkOf[Tensor, Values, Module]
"""Any framework."""


def framework_of(value: object) -> Framework:
    """Find the framework of a module or a tensor. Raises TypeError for what is none of the two.

    A framework that the program has not loaded is not loaded here either.
    """
    found: Framework  # no import_module(), no cast(): torch.compile traces this
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, (torch.Tensor, torch.nn.Module)):
        from torsh_runtime.framework.torch import FRAMEWORK

        found = FRAMEWORK
        return found
    nn = sys.modules.get("torsh_runtime.nn")
    if nn is not None and isinstance(value, (nn.Tensor, nn.Module)):
        from torsh_runtime.nn.framework import FRAMEWORK

        found = FRAMEWORK
        return found
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(
        f"a {kind} is no tensor and no model of torch or of torsh_runtime.nn: pass one of those"
    )


def framework_of_model(model: object) -> Framework:
    """Find the framework of a module. TypeError for anything else, a tensor included."""
    framework = framework_of(model)
    if not isinstance(model, framework.module_type):
        raise TypeError(
            f"a {type(model).__qualname__} is a tensor and no model: pass a torch.nn.Module or a "
            f"torsh_runtime.nn.Module"
        )
    return framework


def framework_named(name: str | None) -> Framework:
    """Find the framework called "torch" or "nn". None is torch if that is loaded. Raises
    ConfigError for other names."""
    found: Framework
    wanted = name or ("torch" if "torch" in sys.modules else "nn")
    if wanted == "torch":
        from torsh_runtime.framework.torch import FRAMEWORK

        found = FRAMEWORK
        return found
    if wanted == "nn":
        from torsh_runtime.nn.framework import FRAMEWORK

        found = FRAMEWORK
        return found
    raise ConfigError(f"framework is 'torch' or 'nn', not {name!r}")
