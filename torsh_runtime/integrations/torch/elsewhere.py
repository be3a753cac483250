"""Represents tensors whose values another rank has."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from torsh_runtime.errors import ConfigError

_base: Any = torch.Tensor
_TELLING = frozenset(
    [
        *(
            getattr(_base, name).__get__
            for name in (
                "shape", "dtype", "device", "layout", "ndim", "is_meta", "is_cuda", "is_cpu",
                "is_sparse", "requires_grad", "grad", "grad_fn", "is_leaf", "itemsize", "nbytes",
            )
        ),
        *(
            getattr(_base, name)
            for name in (
                "size", "dim", "numel", "nelement", "element_size", "stride", "is_contiguous",
                "is_floating_point", "is_complex", "__len__",
            )
        ),
    ]
)  # fmt: skip
"""Functions that need no values."""


class Elsewhere(torch.Tensor):
    """Has a shape and a dtype, but no values, which another rank has.

    Operations that need values raise ConfigError, so that it is neither used as a tensor nor
    written to a file.
    """

    _why: str

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype, why: str) -> Elsewhere:
        """Return such a tensor. `why`: the error's text, which says who has the values and what to
        do.
        """
        made = torch.empty(shape, dtype=dtype, device="meta").as_subclass(cls)
        made._why = why
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out functions that need no values; raise ConfigError for others."""
        if func not in _TELLING:
            found = next(each for each in _flat([*args, kwargs or {}]) if isinstance(each, cls))
            found._refuse()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def _refuse(self) -> NoReturn:
        raise ConfigError(self._why)

    def __reduce_ex__(self, _: Any) -> NoReturn:
        self._refuse()

    def __deepcopy__(self, _: Any) -> NoReturn:
        self._refuse()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return the shape and the dtype as text."""
        return f"Elsewhere(shape={tuple(self.shape)}, dtype={self.dtype})"


def _flat(values: Any) -> list[Any]:
    if isinstance(values, dict):
        values = [*values.values()]
    if isinstance(values, list | tuple):
        return [leaf for each in values for leaf in _flat(each)]
    return [values]
