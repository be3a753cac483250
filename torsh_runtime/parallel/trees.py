"""Averages gradients for functional code, where they are values and not parts of parameters."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework.trees import mapped
from torsh_runtime.parallel.groups import group_of


def average_gradients(tree: Any, group: ProcessGroup | None = None) -> Any:
    """Return a tree like this one, of the means over all ranks.

    Nothing is changed in place, and the results are of the kind that was given, except that the
    mean of ints is a float; in arrays of integers it is rounded towards zero.

    Args:
        tree: Nested dicts, lists and tuples of numbers and of arrays of numpy, JAX or torch; any
            pytree if JAX is loaded. All ranks pass the same structure, and None for missing values.
        group: The process group; None is the default group.

    Raises:
        CommMismatch: If shapes or dtypes differ over ranks.
        CommError: If the exchange among the ranks fails.

    Example:
        ```python
        gradients = jax.grad(loss)(params, batch)
        gradients = tr.average_gradients(gradients)
        ```
    """
    members = group_of(group)
    jax = sys.modules.get("jax")
    each = mapped if jax is None else jax.tree_util.tree_map
    copies: list[Any] = []
    each(lambda leaf: copies.append(_copy(leaf)), tree)
    works = [members.all_reduce(copy, ReduceOp.AVG, async_op=True) for copy in copies]
    for work in works:
        work.wait()
    means = iter(copies)
    return each(lambda leaf: _like(leaf, next(means)), tree)


def _copy(leaf: Any) -> Any:
    if hasattr(leaf, "detach"):
        return leaf.detach().clone()
    return np.array(leaf, np.float64 if isinstance(leaf, int) else None)


def _like(leaf: Any, mean: Any) -> Any:
    if isinstance(leaf, int | float | complex):
        return mean.item()
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(leaf, jax.Array):
        return jax.numpy.asarray(mean)
    return mean
