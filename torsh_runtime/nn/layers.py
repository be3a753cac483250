"""Defines layers with torch's arguments, parameters and initial distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torsh_runtime.nn import functional
from torsh_runtime.nn.arrays import dtype_named
from torsh_runtime.nn.initialisation import default_, normal_
from torsh_runtime.nn.module import Module
from torsh_runtime.nn.parameter import Parameter
from torsh_runtime.nn.windows import Pair, pair


def new_parameter(*shape: int, value: float = 0.0, dtype: Any = None) -> Parameter:
    """Return a parameter filled with one value, float32 unless another dtype is given."""
    return Parameter(np.full(shape, value, dtype_named(dtype or np.float32)))


class Linear(Module):
    """Computes x @ weight.T + bias; weight: (out_features, in_features)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = new_parameter(out_features, in_features, dtype=dtype)
        self.register_parameter("bias", new_parameter(out_features, dtype=dtype) if bias else None)
        default_(self.weight, self.bias)

    def forward(self, x: Any) -> Any:
        """Apply the layer to x: (…, in_features). Returns (…, out_features)."""
        return functional.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Conv2d(Module):
    """Convolves images; weight: (out_channels, in_channels / groups, *kernel_size)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{groups} groups do not divide {in_channels}, {out_channels} channels"
            )
        self.stride, self.padding, self.dilation = pair(stride), pair(padding), pair(dilation)
        self.groups = groups
        size = (out_channels, in_channels // groups, *pair(kernel_size))
        self.weight = new_parameter(*size, dtype=dtype)
        self.register_parameter("bias", new_parameter(out_channels, dtype=dtype) if bias else None)
        default_(self.weight, self.bias)

    def forward(self, x: Any) -> Any:
        """Apply the layer to x: (N, in_channels, height, width)."""
        return functional.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        return f"weight={self.weight.shape}, stride={self.stride}, padding={self.padding}"


class Embedding(Module):
    """Looks up rows of a table of `num_embeddings` rows by index."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None:
            padding_idx = range(num_embeddings)[padding_idx]
        self.padding_idx = padding_idx
        self.weight = new_parameter(num_embeddings, embedding_dim, dtype=dtype)
        normal_(self.weight)
        if padding_idx is not None:
            self.weight.data[padding_idx] = 0

    def forward(self, indices: Any) -> Any:
        """Look up indices, integers of any shape. Returns (*indices.shape, embedding_dim)."""
        return functional.embedding(indices, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        return ", ".join(map(str, self.weight.shape))


class LayerNorm(Module):
    """Normalises the last axes to mean 0 and variance 1, then applies weight and bias."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        ones = new_parameter(*self.normalized_shape, value=1, dtype=dtype)
        zeros = new_parameter(*self.normalized_shape, dtype=dtype)
        self.register_parameter("weight", ones if elementwise_affine else None)
        self.register_parameter("bias", zeros if elementwise_affine and bias else None)

    def forward(self, x: Any) -> Any:
        """Apply the layer to x: (…, *normalized_shape)."""
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the shape and eps as text."""
        return f"{self.normalized_shape}, eps={self.eps}"


class RMSNorm(Module):
    """Normalises the last axes to mean square 1, then applies weight."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        ones = new_parameter(*self.normalized_shape, value=1, dtype=dtype)
        self.register_parameter("weight", ones if elementwise_affine else None)

    def forward(self, x: Any) -> Any:
        """Apply the layer to x: (…, *normalized_shape)."""
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Return the shape and eps as text."""
        return f"{self.normalized_shape}, eps={self.eps}"


def _shape(given: int | Sequence[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


class Dropout(Module):
    """Sets each element to 0 with probability p in training, else divides it by 1 - p."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p is a probability, not {p}")
        self.p = p

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """Return the probability as text."""
        return f"p={self.p}"


class _Pool2d(Module):
    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def extra_repr(self) -> str:
        """Return the windows as text."""
        return f"{self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool2d(_Pool2d):
    """Takes the largest element of each window."""

    def forward(self, x: Any) -> Any:
        """Apply the layer to x: (N, channels, height, width)."""
        return functional.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool2d):
    """Takes the mean of each window."""

    def forward(self, x: Any) -> Any:
        """Apply the layer to x: (N, channels, height, width)."""
        return functional.avg_pool2d(x, self.kernel_size, self.stride, self.padding)
