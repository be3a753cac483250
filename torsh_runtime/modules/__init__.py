"""Models of any framework, as the parallel code sees them."""

from __future__ import annotations

import sys
from typing import Any

from torsh_runtime.modules.base import ModuleAdapter

__all__ = ["ModuleAdapter", "adapter_class"]


def adapter_class(module: object) -> type[ModuleAdapter[Any]]:
    """The adapter for this kind of model. TypeError if there is none."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(module, torch.nn.Module):
        from torsh_runtime.modules.torch import TorchModule

        return TorchModule
    nn = sys.modules.get("torsh_runtime.nn")
    if nn is not None and isinstance(module, nn.Module):
        from torsh_runtime.modules.nn import NnModule

        return NnModule
    raise TypeError(
        f"a {type(module).__module__}.{type(module).__qualname__} is no model: pass a "
        f"torch.nn.Module or a torsh_runtime.nn.Module"
    )
