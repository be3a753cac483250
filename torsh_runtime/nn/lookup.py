"""Looks up rows of tables by index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torsh_runtime.nn.arrays import Array, add_at, array_module, computable, rows_of
from torsh_runtime.nn.graph import derived, operand

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor


def embedding(input: Any, weight: Any, padding_idx: int | None = None) -> Tensor:
    """Return the rows of weight (rows, width) at the indices `input`: (*input.shape, width).

    Args:
        input: The indices, integers of any shape.
        weight: The table (rows, width).
        padding_idx: The row that gets no gradient; None: there is none.

    Raises:
        TypeError: For indices that are no integers.
        IndexError: For indices out of range.

    Example:
        ```python
        table = tr.nn.randn(10, 4)
        tr.nn.functional.embedding(tr.nn.tensor([1, 2]), table).shape  # (2, 4)
        ```
    """
    where, table = operand(input), weight.data
    if where.dtype.kind not in "iu":
        raise TypeError(f"embedding: indices are integers, not {where.dtype}")
    if where.size and not 0 <= int(where.min()) <= int(where.max()) < len(table):
        raise IndexError(
            f"embedding: indices from {int(where.min())} to {int(where.max())}, and the table has "
            f"{len(table)} rows"
        )

    def pullback(g: Array) -> Array:
        result = array_module(g).zeros(table.shape, g.dtype)
        add_at(result, where.reshape(-1), rows_of(g))
        if padding_idx is not None:
            result[padding_idx] = 0
        return result

    return derived(computable(table[where]), (weight, pullback))
