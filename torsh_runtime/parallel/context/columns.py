"""Causal attention with less of what nobody looks at."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from torsh_runtime.parallel.context.kernels import Kernel
from torsh_runtime.parallel.context.merging import Sum, empty_by_token, merge
from torsh_runtime.parallel.context.tasks import Band
from torsh_runtime.parallel.operations import Array

_COLUMNS = 4
Place = tuple[slice, slice, slice]
"""Slices of rows, heads and tokens; all rows and heads are taken."""


class Columns(Kernel[Array]):
    """A kernel that computes causal attention of some lengths in columns: a quarter of the keys at
    a time, with the queries from the first of these on. Of L² scores that makes 5/8, and the keys'
    gradients of a column are whole.
    """

    def __init__(self, kernel: Kernel[Any], lengths: Container[int]) -> None:
        """Wrap a kernel.

        `lengths`: the numbers of keys at which columns are faster than the kernel alone.
        """
        self._kernel, self._lengths = kernel, lengths

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        is_causal: bool,
        scale: float,
        band: Band | None = None,
    ) -> tuple[Array, Array]:
        if not (is_causal and key.shape[2] in self._lengths):
            return self._kernel.forward(query, key, value, is_causal, scale, band)
        columns = _columns(key.shape[2])
        _, first = next(columns)
        output, logsumexp = self._kernel.forward(query, key[first], value[first], True, scale)
        for rows, column in columns:
            more = self._kernel.forward(query[rows], key[column], value[column], True, scale)
            merge(output[rows], logsumexp[rows], *more)
        return output, logsumexp

    def backward(
        self,
        gradient: Array,
        query: Array,
        key: Array,
        value: Array,
        output: Array,
        logsumexp: Array,
        is_causal: bool,
        scale: float,
        band: Band | None = None,
    ) -> tuple[Array, Array, Array]:
        if not (is_causal and key.shape[2] in self._lengths):
            return self._kernel.backward(
                gradient, query, key, value, output, logsumexp, is_causal, scale, band
            )
        for_query, for_key, for_value = Sum(query), empty_by_token(key), empty_by_token(value)
        for rows, column in _columns(key.shape[2]):
            more, for_key[column], for_value[column] = self._kernel.backward(
                gradient[rows],
                query[rows],
                key[column],
                value[column],
                output[rows],
                logsumexp[rows],
                True,
                scale,
            )
            for_query.add(rows, more)
        return for_query.array(), for_key, for_value


def _columns(length: int) -> Iterator[tuple[Place, Place]]:
    """Yield the queries and the keys of each column; the first column has all queries."""
    width, every = -(-length // _COLUMNS), slice(None)
    for first in range(0, length, width):
        yield (every, every, slice(first, None)), (every, every, slice(first, first + width))
