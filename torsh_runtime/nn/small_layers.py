"""Defines layers without parameters that apply one function, and the losses."""

from __future__ import annotations

from typing import Any

from torsh_runtime.nn import functional
from torsh_runtime.nn.module import Module
from torsh_runtime.nn.shaping import flatten


class ReLU(Module):
    """Applies max(x, 0) to each element."""

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.relu(x)


class GELU(Module):
    """Applies x · Φ(x) to each element; approximate: "none" or "tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.gelu(x, self.approximate)


class SiLU(Module):
    """Applies x · sigmoid(x) to each element."""

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.silu(x)


class Tanh(Module):
    """Applies the hyperbolic tangent to each element."""

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.tanh(x)


class Sigmoid(Module):
    """Applies 1 / (1 + exp(-x)) to each element."""

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.sigmoid(x)


class Softmax(Module):
    """Divides exp(x) by its sum along an axis."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.softmax(x, self.dim)


class Identity(Module):
    """Returns its input unchanged."""

    def forward(self, x: Any) -> Any:
        """Return x, which may be anything."""
        return x


class Flatten(Module):
    """Joins the axes from `start_dim` to `end_dim` into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return flatten(x, self.start_dim, self.end_dim)


class MSELoss(Module):
    """Computes the squared difference."""

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of x and target, which have one shape."""
        return functional.mse_loss(x, target, reduction=self.reduction)


class CrossEntropyLoss(Module):
    """Computes -log softmax(x) at the target class."""

    def __init__(
        self, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing = label_smoothing

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of x: (N, classes, …) for target: (N, …)."""
        return functional.cross_entropy(
            x,
            target,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
