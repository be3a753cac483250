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
    """Computes x @ weight.T + bias.

    Attributes:
        weight: The weight (out_features, in_features).
        bias: The bias (out_features), or None.

    Example:
        ```python
        layer = tr.nn.Linear(8, 2)
        layer(tr.nn.randn(5, 8)).shape  # (5, 2)
        ```
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None
    ) -> None:
        """Create the layer.

        Args:
            in_features: The width of the input.
            out_features: The width of the output.
            bias: Whether there is a bias.
            dtype: The parameters' dtype; None is float32.
        """
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
    """Convolves images.

    Attributes:
        weight: The weight (out_channels, in_channels / groups, *kernel_size).
        bias: The bias (out_channels), or None.

    Example:
        ```python
        layer = tr.nn.Conv2d(3, 16, kernel_size=3, padding=1)
        layer(tr.nn.randn(2, 3, 32, 32)).shape  # (2, 16, 32, 32)
        ```
    """

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
        """Create the layer. Sizes are a number for both axes, or (vertical, horizontal).

        Args:
            in_channels: The channels of the input.
            out_channels: The channels of the output.
            kernel_size: The size of the kernel.
            stride: The distance between windows.
            padding: The zeros around the image.
            dilation: The distance between the kernel's elements.
            groups: The number of groups of channels, which are convolved apart.
            bias: Whether there is a bias.
            dtype: The parameters' dtype; None is float32.

        Raises:
            ValueError: If `groups` does not divide the channels.
        """
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
        """Apply the layer to x: (N, in_channels, height, width).

        Returns:
            The result (N, out_channels, rows, columns).
        """
        return functional.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        return f"weight={self.weight.shape}, stride={self.stride}, padding={self.padding}"


class Embedding(Module):
    """Looks up rows of a table by index.

    Attributes:
        weight: The table (num_embeddings, embedding_dim).

    Example:
        ```python
        layer = tr.nn.Embedding(1000, 16)
        layer(tr.nn.tensor([[1, 2], [3, 4]])).shape  # (2, 2, 16)
        ```
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        dtype: Any = None,
    ) -> None:
        """Create the layer.

        Args:
            num_embeddings: The number of rows.
            embedding_dim: The width of a row.
            padding_idx: A row that is 0 and gets no gradient; None: there is none.
            dtype: The table's dtype; None is float32.

        Raises:
            IndexError: If there is no row `padding_idx`.
        """
        super().__init__()
        if padding_idx is not None:
            padding_idx = range(num_embeddings)[padding_idx]
        self.padding_idx = padding_idx
        self.weight = new_parameter(num_embeddings, embedding_dim, dtype=dtype)
        normal_(self.weight)
        if padding_idx is not None:
            self.weight.data[padding_idx] = 0

    def forward(self, indices: Any) -> Any:
        """Look up indices, integers of any shape. Returns (*indices.shape, embedding_dim).

        Raises:
            TypeError: For indices that are no integers.
            IndexError: For indices out of range.
        """
        return functional.embedding(indices, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        return ", ".join(map(str, self.weight.shape))


class LayerNorm(Module):
    """Normalises the last axes to mean 0 and variance 1, then applies weight and bias.

    Attributes:
        weight: The factors, of shape normalized_shape, or None.
        bias: The summands, of shape normalized_shape, or None.

    Example:
        ```python
        layer = tr.nn.LayerNorm(16)
        layer(tr.nn.randn(5, 16)).shape  # (5, 16)
        ```
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        """Create the layer.

        Args:
            normalized_shape: The sizes of the last axes, or that of the last one.
            eps: Added to the variance.
            elementwise_affine: Whether there are weight and bias.
            bias: Whether there is a bias.
            dtype: The parameters' dtype; None is float32.
        """
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        ones = new_parameter(*self.normalized_shape, value=1, dtype=dtype)
        zeros = new_parameter(*self.normalized_shape, dtype=dtype)
        self.register_parameter("weight", ones if elementwise_affine else None)
        self.register_parameter("bias", zeros if elementwise_affine and bias else None)

    def forward(self, x: Any) -> Any:
        """Apply the layer to x: (…, *normalized_shape).

        Returns:
            The result, of x's shape.
        """
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the shape and eps as text."""
        return f"{self.normalized_shape}, eps={self.eps}"


class RMSNorm(Module):
    """Normalises the last axes to mean square 1, then applies weight.

    Attributes:
        weight: The factors, of shape normalized_shape, or None.

    Example:
        ```python
        layer = tr.nn.RMSNorm(16)
        layer(tr.nn.randn(5, 16)).shape  # (5, 16)
        ```
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        """Create the layer.

        Args:
            normalized_shape: The sizes of the last axes, or that of the last one.
            eps: Added to the mean square; None is the dtype's own.
            elementwise_affine: Whether there is a weight.
            dtype: The weight's dtype; None is float32.
        """
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        ones = new_parameter(*self.normalized_shape, value=1, dtype=dtype)
        self.register_parameter("weight", ones if elementwise_affine else None)

    def forward(self, x: Any) -> Any:
        """Apply the layer to x: (…, *normalized_shape).

        Returns:
            The result, of x's shape.
        """
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Return the shape and eps as text."""
        return f"{self.normalized_shape}, eps={self.eps}"


def _shape(given: int | Sequence[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


class Dropout(Module):
    """Sets each element to 0 with probability p in training, else divides it by 1 - p.

    Example:
        ```python
        layer = tr.nn.Dropout(0.1)
        layer(x)  # in training; layer.eval() leaves x unchanged
        ```
    """

    def __init__(self, p: float = 0.5) -> None:
        """Create the layer.

        Args:
            p: The probability.

        Raises:
            ValueError: If it is no probability.
        """
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p is a probability, not {p}")
        self.p = p

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape.

        Returns:
            The result, of x's shape.
        """
        return functional.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """Return the probability as text."""
        return f"p={self.p}"


class _Pool2d(Module):
    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0) -> None:
        """Create the layer. Sizes are a number for both axes, or (vertical, horizontal).

        Args:
            kernel_size: The size of a window.
            stride: The distance between windows; None is kernel_size.
            padding: The border around the image.
        """
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def extra_repr(self) -> str:
        """Return the windows as text."""
        return f"{self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool2d(_Pool2d):
    """Takes the largest element of each window. Arguments are kernel_size, stride and padding.

    Raises:
        ValueError: From forward(), if no window fits.

    Example:
        ```python
        tr.nn.MaxPool2d(2)(tr.nn.randn(1, 3, 8, 8)).shape  # (1, 3, 4, 4)
        ```
    """

    def forward(self, x: Any) -> Any:
        """Apply the layer to x: (N, channels, height, width).

        Returns:
            The result (N, channels, rows, columns).
        """
        return functional.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool2d):
    """Takes the mean of each window. Arguments are kernel_size, stride and padding.

    Raises:
        ValueError: From forward(), if no window fits.

    Example:
        ```python
        tr.nn.AvgPool2d(2)(tr.nn.randn(1, 3, 8, 8)).shape  # (1, 3, 4, 4)
        ```
    """

    def forward(self, x: Any) -> Any:
        """Apply the layer to x: (N, channels, height, width).

        Returns:
            The result (N, channels, rows, columns).
        """
        return functional.avg_pool2d(x, self.kernel_size, self.stride, self.padding)
