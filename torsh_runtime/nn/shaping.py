"""Rearranges elements: shapes, indices, pieces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from torsh_runtime.nn.arrays import Array, add_at, array_module, fitted
from torsh_runtime.nn.graph import Gradient, Variable, derived, derived_jointly, derived_several

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor


def _sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the sizes given as in `reshape(2, 3)` or `reshape((2, 3))`."""
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], Sequence) else given


def reshape(x: Any, *shape: Any) -> Tensor:
    """Return the elements in a different shape; one size may be -1. A view if possible."""
    before = x.data.shape
    return derived(x.data.reshape(_sizes(shape)), (x, lambda g: g.reshape(before)))


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Join the axes from `start_dim` to `end_dim` into one."""
    shape = x.data.shape or (1,)
    start, end = start_dim % len(shape), end_dim % len(shape)
    length = 1
    for size in shape[start : end + 1]:
        length *= size
    return reshape(x, (*shape[:start], length, *shape[end + 1 :]))


def permute(x: Any, *dims: Any) -> Tensor:
    """Return a view with the axes in a different order."""
    order = [dim % x.data.ndim for dim in _sizes(dims)]
    back = sorted(range(len(order)), key=order.__getitem__)
    return derived(x.data.transpose(order), (x, lambda g: g.transpose(back)))


def transpose(x: Any, dim0: int, dim1: int) -> Tensor:
    """Return a view with two axes exchanged."""
    return derived(x.data.swapaxes(dim0, dim1), (x, lambda g: g.swapaxes(dim0, dim1)))


def squeeze(x: Any, dim: int | None = None) -> Tensor:
    """Remove the axes of size 1, or `dim` if its size is 1."""
    if dim is not None and x.data.shape[dim] != 1:
        return reshape(x, x.data.shape)
    return reshape(x, x.data.squeeze(dim).shape)


def unsqueeze(x: Any, dim: int) -> Tensor:
    """Insert an axis of size 1 at `dim`."""
    return reshape(x, array_module(x.data).expand_dims(x.data, dim).shape)


def expand(x: Any, *shape: Any) -> Tensor:
    """Broadcast to a shape, where -1 keeps a size. Returns a view that must not be written."""
    before, wanted = x.data.shape, _sizes(shape)
    added = len(wanted) - len(before)
    full = [before[i - added] if size == -1 else size for i, size in enumerate(wanted)]
    result = array_module(x.data).broadcast_to(x.data, full)
    return derived(result, (x, lambda g: fitted(g, before)))


def contiguous(x: Any) -> Tensor:
    """Return the elements contiguous in memory."""
    return derived(array_module(x.data).ascontiguousarray(x.data), (x, lambda g: g))


def getitem(x: Any, index: Any) -> Tensor:
    """Return x[index], for slices (a view), integers, None, ..., masks and arrays of integers.

    As in torch, integers remove their axes before arrays are applied.
    """
    value, where = x.data, _plain(index)
    xp, shape, dtype = array_module(value), value.shape, value.dtype
    if all(map(_is_basic, where)):
        first, then = where, None
    else:
        first = tuple(each for part in where for each in _integers_alone(part))
        then = tuple(part for part in where if not _is_integer(part))

    def pullback(g: Array) -> Array:
        result = xp.zeros(shape, dtype)
        if then is None:
            result[first] = g
        else:
            add_at(result[first], then, g)
        return result

    return derived(value[first] if then is None else value[first][then], (x, pullback))


def _plain(index: Any) -> tuple[Any, ...]:
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(part.data if isinstance(part, Variable) else part for part in parts)


def _is_integer(part: Any) -> bool:
    return isinstance(part, int | np.integer) and not isinstance(part, bool)


def _is_basic(part: Any) -> bool:
    return _is_integer(part) or isinstance(part, slice | type(None) | type(...))


def _integers_alone(part: Any) -> tuple[Any, ...]:
    """Return the part if it is an integer, else slices over all axes that it covers."""
    if _is_integer(part) or part is ...:
        return (part,)
    if part is None or isinstance(part, bool):
        return ()
    is_mask = getattr(part, "dtype", None) == np.bool_
    return (slice(None),) * (part.ndim if is_mask else 1)


def concat(tensors: Sequence[Any], dim: int = 0) -> Tensor:
    """Concatenate tensors along an axis.

    Args:
        tensors: The tensors, of equal shapes except along the axis.
        dim: The axis.

    Returns:
        The tensor, through which gradients flow.

    Raises:
        ValueError: For shapes that do not fit.

    Example:
        ```python
        tr.nn.concat([tr.nn.randn(2, 3), tr.nn.randn(4, 3)]).shape  # (6, 3)
        ```
    """
    arrays = [tensor.data for tensor in tensors]
    xp = array_module(arrays[0])
    ends = [*accumulate(array.shape[dim] for array in arrays)][:-1]
    result = xp.concatenate(arrays, axis=dim)
    return derived_jointly(result, tensors, lambda g: xp.split(g, ends, axis=dim))


def stack(tensors: Sequence[Any], dim: int = 0) -> Tensor:
    """Stack tensors along a new axis.

    Args:
        tensors: The tensors, of equal shapes.
        dim: The place of the new axis.

    Returns:
        The tensor, through which gradients flow.

    Raises:
        ValueError: For shapes that differ.

    Example:
        ```python
        tr.nn.stack([tr.nn.randn(3), tr.nn.randn(3)]).shape  # (2, 3)
        ```
    """
    arrays = [tensor.data for tensor in tensors]
    xp = array_module(arrays[0])
    result = xp.stack(arrays, axis=dim)
    return derived_jointly(result, tensors, lambda g: list(xp.moveaxis(g, dim, 0)))


def unbind(x: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along an axis, without that axis, as views."""
    xp, shape, dtype = array_module(x.data), x.data.shape, x.data.dtype

    def pullback(gradients: list[Gradient]) -> list[Array]:
        result = xp.empty(shape, dtype)
        slices = xp.moveaxis(result, dim, 0)
        for number, gradient in enumerate(gradients):
            slices[number] = 0 if gradient is None else gradient
        return [result]

    return tuple(derived_several(list(xp.moveaxis(x.data, dim, 0)), [x], pullback))


def split(x: Any, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Split an axis into pieces of one size (the last may be smaller) or of given sizes, as views.

    Raises ValueError if given sizes do not add up.
    """
    xp, shape, dtype = array_module(x.data), x.data.shape, x.data.dtype
    if isinstance(split_size, int):
        ends = [*range(split_size, shape[dim], split_size)]
    else:
        *ends, total = accumulate(split_size)
        if total != shape[dim]:
            raise ValueError(f"pieces of {list(split_size)} do not make up axis {dim} of {shape}")
    pieces = xp.split(x.data, ends, axis=dim)

    def pullback(gradients: list[Gradient]) -> list[Array]:
        result = xp.zeros(shape, dtype)
        for place, gradient in zip(xp.split(result, ends, axis=dim), gradients, strict=True):
            if gradient is not None:
                place[...] = gradient
        return [result]

    return tuple(derived_several(pieces, [x], pullback))


def chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Split an axis into at most `chunks` pieces of one size (the last may be smaller), as
    views."""
    return split(x, max(1, -(-x.data.shape[dim] // chunks)), dim)
