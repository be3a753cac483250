"""Declares what arrays of numpy and cupy and tensors of torch have in common outside of graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self, overload

from torsh_runtime.numpy_or_cupy import array_module


class DType(Protocol):
    """The type of elements, as a framework has it."""

    @property
    def itemsize(self) -> int:
        """Return the number of bytes of an element."""

    def __hash__(self) -> int: ...


class Values(Protocol):
    """The arguments of collectives: an array of numpy or cupy, or a tensor of torch outside of
    graphs.

    They have Python's operators in common, with which parallel code computes in place.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the dimensions."""

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""

    @property
    def dtype(self) -> DType:
        """Return the type of the elements."""

    @property
    def itemsize(self) -> int:
        """Return the number of bytes of an element."""

    @property
    def nbytes(self) -> int:
        """Return the size of all elements in bytes."""

    @property
    def T(self) -> Self:  # noqa: N802
        """Return the transposed matrix, in the same memory."""

    @overload
    def reshape(self, shape: tuple[int, ...], /) -> Self:
        """Return the same elements in a different shape, in the same memory if their order
        allows it."""

    @overload
    def reshape(self, *shape: int) -> Self: ...

    def swapaxes(self, axis0: int, axis1: int, /) -> Self:
        """Return the same elements with two dimensions exchanged, in the same memory."""

    def view(self, dtype: Any, /) -> Self:
        """Return the same memory as elements of a different type."""

    @overload
    def sum(self) -> Self:
        """Return the sum of all elements, or those along dimensions."""

    @overload
    def sum(self, axis: int | tuple[int, ...], /) -> Self: ...

    def min(self) -> Self:
        """Return the least element."""

    def max(self) -> Self:
        """Return the greatest element."""

    def any(self) -> Values:
        """Return whether any element is true."""

    def all(self) -> Values:
        """Return whether all elements are true."""

    def item(self) -> Any:
        """Return the only element as a number."""

    def tolist(self) -> Any:
        """Return the elements as nested lists of numbers."""

    def __len__(self) -> int: ...

    def __bool__(self) -> bool: ...

    def __int__(self) -> int: ...

    def __float__(self) -> float: ...

    def __iter__(self) -> Iterator[Self]: ...

    def __getitem__(self, key: Any) -> Self: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __add__(self, other: Any) -> Self: ...

    def __radd__(self, other: Any) -> Self: ...

    def __sub__(self, other: Any) -> Self: ...

    def __rsub__(self, other: Any) -> Self: ...

    def __mul__(self, other: Any) -> Self: ...

    def __rmul__(self, other: Any) -> Self: ...

    def __truediv__(self, other: Any) -> Self: ...

    def __pow__(self, other: Any) -> Self: ...

    def __matmul__(self, other: Any) -> Self: ...

    def __neg__(self) -> Self: ...

    def __invert__(self) -> Values: ...

    def __and__(self, other: Any) -> Values: ...

    def __or__(self, other: Any) -> Values: ...

    def __lt__(self, other: Any) -> Values: ...

    def __le__(self, other: Any) -> Values: ...

    def __gt__(self, other: Any) -> Values: ...

    def __ge__(self, other: Any) -> Values: ...

    def __eq__(self, other: Any) -> Values: ...  # type: ignore[override]

    def __ne__(self, other: Any) -> Values: ...  # type: ignore[override]

    def __iadd__(self, other: Any) -> Self: ...

    def __isub__(self, other: Any) -> Self: ...

    def __imul__(self, other: Any) -> Self: ...

    def __itruediv__(self, other: Any) -> Self: ...


class Functions(Protocol):
    """The functions that torch, numpy and cupy have under the same names."""

    uint8: Any
    float32: Any
    float64: Any

    def isfinite(self, values: Values, /) -> Values:
        """Tell of each element whether it is neither infinite nor NaN."""

    def where(self, condition: Values, values: Any, others: Any, /) -> Values:
        """Choose each element from one of two."""

    def exp(self, values: Values, /, *, out: Values | None = None) -> Values:
        """Return e to the power of each element."""

    def log(self, values: Values, /) -> Values:
        """Return the natural logarithm of each element."""

    def tanh(self, values: Values, /, *, out: Values | None = None) -> Values:
        """Return the hyperbolic tangent of each element."""

    def logaddexp(self, values: Values, others: Values, /) -> Values:
        """Return the logarithms of sums of exponentials."""

    def amax(self, values: Values, axis: int, /) -> Values:
        """Return the greatest elements along a dimension."""

    def minimum(self, values: Values, others: Values, /) -> Values:
        """Return the lesser of each two elements."""

    def triu(self, values: Values, diagonal: int, /) -> Values:
        """Return the elements on and above a diagonal, and zeros."""

    def tril(self, values: Values, diagonal: int, /) -> Values:
        """Return the elements on and below a diagonal, and zeros."""

    def stack(self, values: Sequence[Values], axis: int = 0, /) -> Values:
        """Return arrays one beside the other along a new dimension."""

    def broadcast_to(self, values: Values, shape: tuple[int, ...], /) -> Values:
        """Return a view in which elements are repeated."""

    def zeros_like(self, values: Values, /) -> Values:
        """Return zeros of the same shape and dtype."""


def is_tensor(value: object) -> bool:
    """Tell whether it is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def functions_of(values: Values) -> Functions:
    """Return torch, numpy or cupy: the module whose functions take the values."""
    found: Functions = sys.modules["torch"] if is_tensor(values) else array_module(values)
    return found
