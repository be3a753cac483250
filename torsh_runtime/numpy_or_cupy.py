"""Whose functions an array wants, numpy's or cupy's, and the one dtype that neither has."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np

from torsh_runtime.errors import BackendUnavailable


def array_module(array: Any) -> Any:
    """numpy or cupy, whichever the array belongs to."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else np


def bfloat16() -> np.dtype[Any]:
    """ml_dtypes' bfloat16; BackendUnavailable without that package."""
    try:
        found: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise BackendUnavailable(
            "bfloat16 in arrays", "Install ml_dtypes: `pip install ml_dtypes`."
        ) from None
    return found
