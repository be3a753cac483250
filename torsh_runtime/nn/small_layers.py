"""Defines layers without parameters that apply one function, and the losses."""

from __future__ import annotations

from typing import Any

from torsh_runtime.nn import functional
from torsh_runtime.nn.module import Module
from torsh_runtime.nn.shaping import flatten


class ReLU(Module):
    """Applies max(x, 0) to each element.

    Example:
        ```python
        tr.nn.ReLU()(tr.nn.tensor([-1.0, 2.0])).tolist()  # [0.0, 2.0]
        ```
    """

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.relu(x)


class GELU(Module):
    """Applies x · Φ(x) to each element.

    Example:
        ```python
        model = tr.nn.Sequential(tr.nn.Linear(8, 32), tr.nn.GELU("tanh"), tr.nn.Linear(32, 8))
        ```
    """

    def __init__(self, approximate: str = "none") -> None:
        """Create the layer.

        Args:
            approximate: "none", or "tanh" for an approximation.
        """
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape.

        Raises:
            ValueError: For an unknown approximation.
        """
        return functional.gelu(x, self.approximate)


class SiLU(Module):
    """Applies x · sigmoid(x) to each element.

    Example:
        ```python
        model = tr.nn.Sequential(tr.nn.Linear(8, 32), tr.nn.SiLU(), tr.nn.Linear(32, 8))
        ```
    """

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.silu(x)


class Tanh(Module):
    """Applies the hyperbolic tangent to each element.

    Example:
        ```python
        tr.nn.Tanh()(tr.nn.tensor([0.0])).tolist()  # [0.0]
        ```
    """

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.tanh(x)


class Sigmoid(Module):
    """Applies 1 / (1 + exp(-x)) to each element.

    Example:
        ```python
        tr.nn.Sigmoid()(tr.nn.tensor([0.0])).tolist()  # [0.5]
        ```
    """

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.sigmoid(x)


class Softmax(Module):
    """Divides exp(x) by its sum along an axis.

    Example:
        ```python
        tr.nn.Softmax()(tr.nn.tensor([1.0, 1.0])).tolist()  # [0.5, 0.5]
        ```
    """

    def __init__(self, dim: int = -1) -> None:
        """Create the layer.

        Args:
            dim: The axis.
        """
        super().__init__()
        self.dim = dim

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return functional.softmax(x, self.dim)


class Identity(Module):
    """Returns its input unchanged.

    Example:
        ```python
        model.head = tr.nn.Identity()
        ```
    """

    def forward(self, x: Any) -> Any:
        """Return x, which may be anything."""
        return x


class Flatten(Module):
    """Joins the axes from `start_dim` to `end_dim` into one.

    Example:
        ```python
        tr.nn.Flatten()(tr.nn.randn(2, 3, 4)).shape  # (2, 12)
        ```
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        """Create the layer.

        Args:
            start_dim: The first axis.
            end_dim: The last axis.
        """
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Any) -> Any:
        """Apply the layer to x of any shape."""
        return flatten(x, self.start_dim, self.end_dim)


class MSELoss(Module):
    """Computes the squared difference.

    Example:
        ```python
        tr.nn.MSELoss()(tr.nn.tensor([1.0, 3.0]), tr.nn.tensor([1.0, 1.0])).item()  # 2.0
        ```
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        """Create the loss.

        Args:
            reduction: "mean", "sum" or "none".
        """
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss.

        Args:
            x: A tensor.
            target: A tensor of the same shape.

        Raises:
            ValueError: For shapes that differ, and for an unknown reduction.
        """
        return functional.mse_loss(x, target, reduction=self.reduction)


class CrossEntropyLoss(Module):
    """Computes -log softmax(x) at the target class.

    Example:
        ```python
        loss = tr.nn.CrossEntropyLoss()(model(batch), tr.nn.tensor([3, 1]))  # two rows
        loss.backward()
        ```
    """

    def __init__(
        self, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ) -> None:
        """Create the loss.

        Args:
            ignore_index: The target that does not count.
            reduction: "mean", "sum" or "none".
            label_smoothing: The part of each target that is spread evenly over all classes.
        """
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing = label_smoothing

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss.

        Args:
            x: Unnormalised scores (N, classes, …).
            target: Integers (N, …).

        Raises:
            ValueError: For targets that are no class, for shapes that do not fit, and for an
                unknown reduction.
            TypeError: For targets that are no integers.
        """
        return functional.cross_entropy(
            x,
            target,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
