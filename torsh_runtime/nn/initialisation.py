"""Writes initial values into tensors in place, under the names of torch.nn.init.

They are drawn from the generator that nn.manual_seed() sets, on the host in float64 or float32.
"""

from __future__ import annotations

import math
from typing import Any

from torsh_runtime.nn.arrays import write
from torsh_runtime.nn.random import generator


def _write(tensor: Any, values: Any) -> Any:
    write(tensor.data, values)
    return tensor


def constant_(tensor: Any, val: float) -> Any:
    """Fill the tensor with one value and return it.

    Args:
        tensor: The tensor.
        val: The value.

    Example:
        ```python
        tr.nn.init.constant_(layer.bias, 0.1)
        ```
    """
    tensor.data[...] = val
    return tensor


def zeros_(tensor: Any) -> Any:
    """Fill the tensor with zeros and return it.

    Example:
        ```python
        tr.nn.init.zeros_(layer.bias)
        ```
    """
    return constant_(tensor, 0)


def ones_(tensor: Any) -> Any:
    """Fill the tensor with ones and return it.

    Example:
        ```python
        tr.nn.init.ones_(norm.weight)
        ```
    """
    return constant_(tensor, 1)


def uniform_(tensor: Any, a: float = 0.0, b: float = 1.0) -> Any:
    """Fill the tensor with numbers uniformly distributed in [a, b) and return it.

    Args:
        tensor: The tensor.
        a: The smallest number.
        b: The upper bound.

    Example:
        ```python
        tr.nn.init.uniform_(layer.weight, -0.1, 0.1)
        ```
    """
    return _write(tensor, generator().uniform(a, b, tensor.shape))


def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0) -> Any:
    """Fill the tensor with normally distributed numbers and return it.

    Args:
        tensor: The tensor.
        mean: Their mean.
        std: Their standard deviation.

    Example:
        ```python
        tr.nn.init.normal_(layer.weight, std=0.02)
        ```
    """
    return _write(tensor, generator().normal(mean, std, tensor.shape))


def fans(tensor: Any) -> tuple[int, int]:
    """Count the inputs and outputs that each element of a weight (out, in, …) takes part in.

    Args:
        tensor: The weight.

    Returns:
        The number of inputs, and that of outputs.

    Raises:
        ValueError: For fewer than two axes.

    Example:
        ```python
        tr.nn.init.fans(tr.nn.Linear(8, 2).weight)  # (8, 2)
        ```
    """
    if tensor.ndim < 2:
        raise ValueError(f"a weight of shape {tensor.shape} has no inputs and outputs to count")
    out, inputs, *kernel = tensor.shape
    return inputs * math.prod(kernel), out * math.prod(kernel)


def kaiming_uniform_(tensor: Any, a: float = 0.0) -> Any:
    """Fill a weight uniformly so that ReLUs, leaky by `a`, preserve the variance; return it.

    See He et al., "Delving Deep into Rectifiers", 2015.

    Args:
        tensor: The weight (out, in, …).
        a: The slope of the ReLU below 0.

    Raises:
        ValueError: For fewer than two axes.

    Example:
        ```python
        tr.nn.init.kaiming_uniform_(layer.weight)
        ```
    """
    fan_in, _ = fans(tensor)
    bound = math.sqrt(6 / ((1 + a * a) * fan_in)) if fan_in else 0
    return uniform_(tensor, -bound, bound)


def xavier_uniform_(tensor: Any, gain: float = 1.0) -> Any:
    """Fill a weight uniformly so that the variance is preserved in both directions; return it.

    See Glorot and Bengio, "Understanding the Difficulty of Training Deep Feedforward Neural
    Networks", 2010.

    Args:
        tensor: The weight (out, in, …).
        gain: A factor of the standard deviation.

    Raises:
        ValueError: For fewer than two axes.

    Example:
        ```python
        tr.nn.init.xavier_uniform_(layer.weight)
        ```
    """
    bound = gain * math.sqrt(6 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound)


def default_(weight: Any, bias: Any = None) -> None:
    """Fill both uniformly in ±1/√fan_in, as torch does for linear and convolutional layers.

    Args:
        weight: The weight (out, in, …).
        bias: The bias, or None.

    Raises:
        ValueError: For a weight of fewer than two axes.

    Example:
        ```python
        tr.nn.init.default_(layer.weight, layer.bias)
        ```
    """
    kaiming_uniform_(weight, math.sqrt(5))
    if bias is not None:
        fan_in, _ = fans(weight)
        bound = 1 / math.sqrt(fan_in) if fan_in else 0
        uniform_(bias, -bound, bound)
