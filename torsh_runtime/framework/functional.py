"""Declares the functions of layers that parallel code calls, under torch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Functional(Protocol):
    """Declares the functions of layers that both frameworks have."""

    gelu: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    silu: Callable[[Any], Any]
    linear: Callable[..., Any]
    softmax: Callable[[Any, int], Any]
    embedding: Callable[[Any, Any, int | None], Any]
    dropout: Callable[[Any, float, bool], Any]
    layer_norm: Callable[..., Any]
    rms_norm: Callable[..., Any]
    scaled_dot_product_attention: Callable[..., Any]
