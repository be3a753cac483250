"""What is computed block by block, or column by column, put together in float32 or float64."""

from __future__ import annotations

from typing import Any

from torsh_runtime.parallel.operations import Array, functions_of


def merge(output: Array, logsumexp: Array, more: Array, its: Array) -> None:
    """Let what `more` was made of count too; all but `its` is written to."""
    xp = functions_of(output)
    total = xp.logaddexp(logsumexp, its)
    weight = xp.exp(its - total)[..., None]
    if hasattr(output, "lerp_"):
        output.lerp_(more, weight)
    else:
        more -= output
        more *= weight
        output += more
    logsumexp[...] = total


class Sum:
    """Gradients of parts of an array."""

    def __init__(self, like: Array) -> None:
        self._like = like
        self._total: Array | None = None

    def add(self, at: tuple[slice, ...], gradient: Array) -> None:
        """Of this part; the array is taken."""
        is_first, is_all = self._total is None, gradient.shape == self._like.shape
        if is_first and is_all and gradient.dtype == kind(self._like):
            self._total = gradient
        else:
            place = self.array()[at]
            place += gradient

    def array(self) -> Array:
        """All of it; zeros where nothing was added."""
        if self._total is None:
            self._total = functions_of(self._like).zeros_like(self._like, dtype=kind(self._like))
        return self._total


def kind(like: Array) -> Any:
    """The dtype that is computed in: float32 where 16 bits are given."""
    xp = functions_of(like)
    return xp.float64 if like.dtype == xp.float64 else xp.float32


def cast(array: Array, dtype: Any) -> Array:
    """The array itself if it has the dtype, or a copy that has."""
    if array.dtype == dtype:
        return array
    return array.to(dtype) if hasattr(array, "new_empty") else array.astype(dtype)
