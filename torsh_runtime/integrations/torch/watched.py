"""Defines parameters that report when an operation is about to use their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torsh_runtime.framework.trees import leaves

_FACTS = frozenset(
    {
        "_backward_hooks",
        "_version",
        "device",
        "dtype",
        "element_size",
        "grad",
        "grad_fn",
        "is_complex",
        "is_cpu",
        "is_cuda",
        "is_floating_point",
        "is_leaf",
        "is_meta",
        "is_sparse",
        "itemsize",
        "layout",
        "register_hook",
        "requires_grad",
        "requires_grad_",
    }
)
"""Attributes and methods that need neither values nor shapes."""


def watched_type(use: Callable[[Any], None]) -> type[torch.nn.Parameter]:
    """Return a class of parameters that call use(parameter) before an operation uses their values.

    This includes their shapes. `use` must give the parameter its own class back.
    """

    class Watched(torch.nn.Parameter):
        is_watched = True

        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, arguments: Any = (), named: Any = None
        ) -> Any:
            given = (arguments, named or {})
            if not _takes_values(function):
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*arguments, **given[1])
            for each in leaves(given):
                if type(each) is cls:
                    use(each)
            return function(*arguments, **given[1])

    return Watched


def _takes_values(function: Any) -> bool:
    name = function.__name__
    if name in ("__get__", "__set__", "__delete__"):  # of an attribute
        name = function.__self__.__name__
    return name not in _FACTS
