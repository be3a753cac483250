"""Copies the bytes of arrays and tensors of any framework, in row-major order."""

from __future__ import annotations

import math
import mmap
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.numpy_or_cupy import array_module, bfloat16

Bytes = NDArray[np.uint8]

_LARGE = 4 << 20
"""Bytes from which arrays are given large pages."""


def is_array(value: object) -> bool:
    """Return whether the value is an array of numpy, cupy or jax, or a tensor of torch."""
    return _is_torch(value) or all(hasattr(value, each) for each in ("__array__", "dtype", "shape"))


def dtype_name(values: Any) -> str:
    """Return the dtype's name that numpy, torch and ml_dtypes share: "float32", "bfloat16"."""
    return name_of(values.dtype)


@lru_cache
def name_of(dtype: object) -> str:
    """Return the name of a dtype, as dtype_name() does."""
    return str(dtype).removeprefix("torch.")


def copy_out(values: Any, target: Bytes) -> None:
    """Write the bytes of `values` to `target`, which has the same length."""
    if _is_torch(values):
        from torsh_runtime.arrays.torch import copy_out as copy_tensor_out

        copy_tensor_out(values, target)
        return
    host = values.get() if array_module(values) is not np else np.asarray(values)
    elements = target.view(host.dtype).reshape(host.shape)
    np.copyto(elements, host)


def copy_in(values: Any, source: Bytes) -> None:
    """Write the bytes into `values`, in place."""
    if _is_torch(values):
        from torsh_runtime.arrays.torch import copy_in as copy_tensor_in

        copy_tensor_in(values, source)
        return
    elements = source.view(values.dtype).reshape(values.shape)
    values[...] = array_module(values).asarray(elements)


def cast_in(values: Any, source: Bytes, dtype: str) -> None:
    """Write bytes of the dtype `dtype` into `values`, in place, rounding elements to its dtype."""
    elements = empty(framework_of(values), tuple(values.shape), dtype)
    copy_in(elements, source)
    if _is_torch(values):
        values.detach().copy_(elements)
    else:
        values[...] = array_module(values).asarray(elements).astype(values.dtype)


def memory_of(values: Any) -> Bytes | None:
    """Return a writable view of the bytes of `values`, as a one-dimensional uint8 array.

    Returns None unless they are contiguous in this process's memory and writable.
    """
    if _is_torch(values):
        from torsh_runtime.arrays.torch import memory_of as memory_of_tensor

        return memory_of_tensor(values)
    if not isinstance(values, np.ndarray) or not values.flags.c_contiguous:
        return None
    return values.reshape(-1).view(np.uint8) if values.flags.writeable else None


def empty(framework: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Return an uninitialised array of "numpy", or tensor of "torch", in this process's memory.

    Raises TypeError for a dtype that the framework does not have."""
    if framework == "torch":
        from torsh_runtime.arrays.torch import empty as empty_tensor

        return empty_tensor(shape, dtype)
    return np.empty(shape, bfloat16() if dtype == "bfloat16" else np.dtype(dtype))


def empty_apart(framework: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Return what empty() does, for values that ranks do not exchange.

    numpy's large arrays are in memory that ranks share, in small pages, which takes more than twice
    as long to be given by the system as large ones.
    """
    kind = bfloat16() if dtype == "bfloat16" else np.dtype(dtype)
    num_bytes = math.prod(shape) * kind.itemsize
    if framework == "torch" or num_bytes < _LARGE:
        return empty(framework, shape, dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # of a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray(shape, kind, memory)


def framework_of(values: object) -> str:
    """Return the name of the value's framework that empty() takes: "torch" or "numpy"."""
    return "torch" if _is_torch(values) else "numpy"


def _is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
