"""Parameters in pieces that stay in the processor's cache from the first step of an update to the
last.
"""

from __future__ import annotations

from collections.abc import Iterator

from torsh_runtime.nn.arrays import Array, array_module, blocks, computable


def pieces(param: Array, *others: Array) -> Iterator[tuple[Array, ...]]:
    """The same piece of each array, flat. What is written into the parameter's pieces, and those
    of other contiguous arrays, is written into these arrays; 16-bit types are float32 in pieces.
    """
    whole = array_module(param).ascontiguousarray(computable(param))
    flat = [whole.reshape(-1), *(computable(other).reshape(-1) for other in others)]
    for block in blocks(flat[0]):
        yield tuple(array[block] for array in flat)
    if whole is not param:
        param[...] = whole.reshape(param.shape)


def zeros_for(param: Array) -> Array:
    """Contiguous zeros of the parameter's shape, of the dtype that is computed in."""
    xp = array_module(param)
    return xp.zeros(param.shape, computable(xp.empty(0, param.dtype)).dtype)
