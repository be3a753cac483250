"""Splits parameters into pieces that stay in the processor's cache during an update."""

from __future__ import annotations

from collections.abc import Iterator

from torsh_runtime.nn.arrays import Array, array_module, blocks, computable


def pieces(param: Array, *others: Array) -> Iterator[tuple[Array, ...]]:
    """Yield the same flat piece of each array.

    Writes to the pieces of the parameter and of contiguous arrays change these arrays. Pieces of
    16-bit types are float32.
    """
    whole = array_module(param).ascontiguousarray(computable(param))
    flat = [whole.reshape(-1), *(computable(other).reshape(-1) for other in others)]
    for block in blocks(flat[0]):
        yield tuple(array[block] for array in flat)
    if whole is not param:
        param[...] = whole.reshape(param.shape)


def zeros_for(param: Array) -> Array:
    """Return contiguous zeros of the parameter's shape, in the dtype of computation."""
    xp = array_module(param)
    return xp.zeros(param.shape, computable(xp.empty(0, param.dtype)).dtype)
