"""The module of an array, numpy or cupy, and bfloat16, which neither of them has."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np

from torsh_runtime.errors import BackendUnavailable


def array_module(array: Any) -> Any:
    """Return the module that the array belongs to: cupy, or numpy for all other arrays."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else np


def bfloat16() -> np.dtype[Any]:
    """Return ml_dtypes' bfloat16. Raises BackendUnavailable without that package."""
    try:
        found: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise BackendUnavailable(
            "bfloat16 in arrays", "Install ml_dtypes: `pip install ml_dtypes`."
        ) from None
    return found
