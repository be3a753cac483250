"""Lets the compressors compute with torch tensors by the code for numpy's arrays.

The operations are torch's, on the tensor's device and on the current stream. None of them makes the
processor wait for a GPU, apart from `flatnonzero`, whose result has as many elements as it finds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import EllipsisType, SimpleNamespace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.numpy_or_cupy import bfloat16

Tensor = Any
"""A torch.Tensor."""
Axis = int | None
_UNSIGNED = ("uint16", "uint32", "uint64")
"""Names of dtypes that torch adds to no others."""


class _Bfloat16:
    """Stands for the dtype of bfloat16 tensors, which numpy does not have."""

    name = "bfloat16"
    itemsize = 2


class TensorArray:
    """A torch tensor with numpy's operators, and the methods that compressors use."""

    __array_ufunc__ = None  # numpy's numbers leave operators to this class; its functions refuse
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def module(self) -> TensorModule:
        """Return the functions of numpy for arrays on this tensor's device."""
        return TensorModule(self.tensor.device)

    @property
    def dtype(self) -> Any:
        """Return the dtype as numpy's; for bfloat16 an object that has its name."""
        name = str(self.tensor.dtype).removeprefix("torch.")
        return _Bfloat16 if name == "bfloat16" else np.dtype(name)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def size(self) -> int:
        return int(self.tensor.numel())

    @property
    def nbytes(self) -> int:
        return int(self.tensor.nbytes)

    @property
    def T(self) -> TensorArray:  # noqa: N802  (numpy's name)
        return TensorArray(self.tensor.mT)

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[TensorArray]:
        return map(TensorArray, self.tensor.unbind())

    def __getitem__(self, key: Any) -> TensorArray:
        return TensorArray(self.tensor[plain(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        is_mask = isinstance(key, TensorArray) and key.dtype == np.bool_
        if is_mask and key.shape == self.shape and not isinstance(value, TensorArray):
            self.tensor.masked_fill_(key.tensor, value)
        elif isinstance(key, TensorArray) and not (is_mask or isinstance(value, TensorArray)):
            self.tensor.index_fill_(0, key.tensor, value)
        elif isinstance(value, TensorArray) and not isinstance(key, EllipsisType):
            self.tensor[plain(key)] = value.tensor.to(self.tensor.dtype)
        else:
            self.tensor[plain(key)] = plain(value)

    def _by(self, how: Callable[..., Tensor], *others: Any) -> TensorArray:
        return TensorArray(how(self.tensor, *map(plain, others)))

    def __int__(self) -> int:
        return int(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError("numpy's functions take no torch tensors: use get(), which waits for a GPU")

    def __add__(self, other: Any) -> TensorArray:
        if isinstance(other, TensorArray) and other.dtype.name in _UNSIGNED:
            other = other.astype(self.dtype, copy=False)
        return self._by(operator.add, other)

    def __radd__(self, other: Any) -> TensorArray:
        return self._by(operator.add, other)

    def __sub__(self, other: Any) -> TensorArray:
        return self._by(operator.sub, other)

    def __neg__(self) -> TensorArray:
        return self._by(operator.neg)

    def __abs__(self) -> TensorArray:
        return self._by(operator.abs)

    def __pow__(self, other: Any) -> TensorArray:
        return self._by(operator.pow, other)

    def __eq__(self, other: object) -> TensorArray:  # type: ignore[override]
        return self._by(operator.eq, other)

    def __ne__(self, other: object) -> TensorArray:  # type: ignore[override]
        return self._by(operator.ne, other)

    def __or__(self, other: Any) -> TensorArray:
        return self._by(operator.or_, other)

    def __mul__(self, other: Any) -> TensorArray:
        return self._by(operator.mul, other)

    def __rmul__(self, other: Any) -> TensorArray:
        return self._by(operator.mul, other)

    def __rsub__(self, other: Any) -> TensorArray:
        return TensorArray(other - self.tensor)

    def __truediv__(self, other: Any) -> TensorArray:
        return self._by(operator.truediv, self._divisor(other))

    def __rtruediv__(self, other: Any) -> TensorArray:
        return TensorArray(other / self.tensor)

    def __matmul__(self, other: Any) -> TensorArray:
        return self._by(operator.matmul, other)

    def __rshift__(self, other: int) -> TensorArray:
        return self._by(operator.rshift, other)

    def __lshift__(self, other: int) -> TensorArray:
        return self._by(operator.lshift, other)

    def __and__(self, other: Any) -> TensorArray:
        return self._by(operator.and_, other)

    def __invert__(self) -> TensorArray:
        return self._by(operator.invert)

    def __gt__(self, other: Any) -> TensorArray:
        return self._by(operator.gt, other)

    def __ge__(self, other: Any) -> TensorArray:
        return self._by(operator.ge, other)

    def __lt__(self, other: Any) -> TensorArray:
        return self._by(operator.lt, other)

    def __le__(self, other: Any) -> TensorArray:
        return self._by(operator.le, other)

    def __iadd__(self, other: Any) -> Self:
        self.tensor.add_(plain(other))
        return self

    def __isub__(self, other: Any) -> Self:
        self.tensor.sub_(plain(other))
        return self

    def __imul__(self, other: Any) -> Self:
        self.tensor.mul_(plain(other))
        return self

    def __itruediv__(self, other: Any) -> Self:
        self.tensor.div_(plain(self._divisor(other)))
        return self

    def astype(self, dtype: Any, copy: bool = True) -> TensorArray:
        return TensorArray(self.tensor.to(_torch_dtype(dtype), copy=copy))

    def view(self, dtype: Any) -> TensorArray:
        return TensorArray(self.tensor.view(_torch_dtype(dtype)))

    def reshape(self, *shape: Any) -> TensorArray:
        return TensorArray(self.tensor.reshape(*shape))

    def copy(self) -> TensorArray:
        return TensorArray(self.tensor.clone())

    def clip(self, low: float, high: float) -> TensorArray:
        return TensorArray(self.tensor.clamp(low, high))

    def sum(self, axis: Axis = None, keepdims: bool = False) -> TensorArray:
        return TensorArray(self.tensor.sum(axis, keepdim=keepdims))

    def mean(self, axis: Axis = None, keepdims: bool = False) -> TensorArray:
        return TensorArray(self.tensor.mean(axis, keepdim=keepdims))

    def max(self, axis: Axis = None, keepdims: bool = False) -> TensorArray:
        return TensorArray(self.tensor.amax(() if axis is None else axis, keepdim=keepdims))

    def min(self, axis: Axis = None, keepdims: bool = False) -> TensorArray:
        return TensorArray(self.tensor.amin(() if axis is None else axis, keepdim=keepdims))

    def all(self, axis: Axis = None) -> TensorArray:
        return TensorArray(self.tensor.all(axis))

    def any(self, axis: Axis = None) -> TensorArray:
        return TensorArray(self.tensor.any(axis))

    def get(self) -> NDArray[Any]:
        """Return a copy in host memory, after all work on the current stream."""
        if self.tensor.dtype == _torch().bfloat16:
            return np.array(self.tensor.view(_torch().int16).cpu().numpy().view(bfloat16()))
        return np.array(self.tensor.cpu().numpy())

    def _divisor(self, other: Any) -> Any:
        """Return a divisor by which GPUs divide: by a number they multiply with its reciprocal,
        which rounds twice."""
        if isinstance(other, TensorArray):
            return other
        return self.tensor.new_full((), other)


class TensorModule:
    """Has numpy's functions, for arrays on one device."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.linalg = SimpleNamespace(norm=_norm)
        self.random = SimpleNamespace(default_rng=self._default_rng)

    def empty(self, shape: Any, dtype: Any) -> TensorArray:
        return TensorArray(_torch().empty(shape, dtype=_torch_dtype(dtype), device=self._device))

    def zeros(self, shape: Any, dtype: Any) -> TensorArray:
        return TensorArray(_torch().zeros(shape, dtype=_torch_dtype(dtype), device=self._device))

    def empty_like(self, array: TensorArray) -> TensorArray:
        return TensorArray(_torch().empty_like(array.tensor))

    def arange(self, count: int) -> TensorArray:
        return TensorArray(_torch().arange(count, device=self._device))

    def asarray(self, array: Any) -> TensorArray:
        """Return the array on the device; on GPUs through page-locked memory, without a wait."""
        if isinstance(array, TensorArray):
            return array
        if array.dtype.name == "bfloat16":
            return TensorArray(self._moved(array.view(np.int16)).view(_torch().bfloat16))
        return TensorArray(self._moved(array))

    def abs(self, array: TensorArray) -> TensorArray:
        return TensorArray(array.tensor.abs())

    def isfinite(self, array: TensorArray) -> TensorArray:
        return TensorArray(array.tensor.isfinite())

    def maximum(self, array: TensorArray, least: int) -> TensorArray:
        return TensorArray(array.tensor.clamp(min=least))

    def minimum(self, array: TensorArray, most: int, out: TensorArray) -> None:
        _torch().clamp(array.tensor, max=most, out=out.tensor)

    def floor(self, array: TensorArray, out: TensorArray) -> None:
        _torch().floor(array.tensor, out=out.tensor)

    def matmul(self, left: TensorArray, right: TensorArray, out: TensorArray) -> None:
        _torch().matmul(left.tensor, right.tensor, out=out.tensor)

    def where(self, test: TensorArray, one: Any, other: Any) -> TensorArray:
        return TensorArray(_torch().where(test.tensor, plain(one), plain(other)))

    def flatnonzero(self, array: TensorArray) -> TensorArray:
        """Return the indices of what is true. The processor waits for their number."""
        return TensorArray(array.tensor.nonzero().reshape(-1))

    def bincount(self, array: TensorArray, minlength: int) -> TensorArray:
        """Return how often each number below `minlength` is there, which are all that are."""
        counts = array.tensor.new_zeros(minlength)
        return TensorArray(counts.index_add_(0, array.tensor, _torch().ones_like(array.tensor)))

    def concatenate(self, arrays: Sequence[TensorArray]) -> TensorArray:
        return TensorArray(_torch().cat([each.tensor for each in arrays]))

    def ascontiguousarray(self, array: TensorArray) -> TensorArray:
        return TensorArray(array.tensor.contiguous())

    def packbits(self, array: TensorArray) -> TensorArray:
        bits = array.tensor.reshape(-1, 8).to(_torch().uint8) << self._shifts()
        return TensorArray(bits.sum(-1, dtype=_torch().uint8))

    def unpackbits(self, array: TensorArray) -> TensorArray:
        return TensorArray(((array.tensor[:, None] >> self._shifts()) & 1).reshape(-1))

    def _shifts(self) -> Tensor:
        return _torch().arange(7, -1, -1, dtype=_torch().uint8, device=self._device)

    def _moved(self, array: NDArray[Any]) -> Tensor:
        made = _torch().from_numpy(np.ascontiguousarray(array))
        if self._device.type != "cuda":
            return made.to(self._device)
        return made.pin_memory().to(self._device, non_blocking=True)

    def _default_rng(self, seed: int) -> Any:
        """Return a generator: numpy's for tensors in host memory, a GPU's own there."""
        if self._device.type == "cpu":
            return _HostDraws(self, seed)
        return _DeviceDraws(self._device, seed)


class _HostDraws:
    def __init__(self, module: TensorModule, seed: int) -> None:
        self._module, self._draws = module, np.random.default_rng(seed)

    def random(self, shape: Sequence[int], dtype: Any) -> TensorArray:
        return self._module.asarray(self._draws.random(shape, dtype=dtype))


class _DeviceDraws:
    def __init__(self, device: Any, seed: int) -> None:
        self._device = device
        self._draws = _torch().Generator(device).manual_seed(seed & ((1 << 63) - 1))

    def random(self, shape: Sequence[int], dtype: Any) -> TensorArray:
        facts = {"dtype": _torch_dtype(dtype), "device": self._device}
        return TensorArray(_torch().rand(*shape, generator=self._draws, **facts))


def largest(values: TensorArray, k: int) -> TensorArray:
    """Return the ascending indices of the k elements largest in magnitude, NaN first."""
    found = values.tensor.abs().topk(k, sorted=False).indices
    return TensorArray(found.sort().values)


def repeated(array: TensorArray, counts: TensorArray, total: int) -> TensorArray:
    """Return each element as often as its count says; the counts add up to `total`."""
    repeat = _torch().repeat_interleave
    return TensorArray(repeat(array.tensor, counts.tensor, output_size=total))


def drop_what_is_not_finite(array: TensorArray) -> None:
    """Set elements that are NaN or infinite to 0."""
    array.tensor.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def shortened(array: TensorArray, limit: float) -> TensorArray:
    """Scale the array to a Euclidean norm of at most `limit`."""
    norm = _torch().linalg.vector_norm(array.tensor)
    array.tensor.mul_(_torch().where(norm > limit, limit / norm, 1.0))
    return array


def nan_unless_finite(values: TensorArray, of: TensorArray) -> None:
    """Set all values to NaN unless all elements of `of` are finite."""
    values.tensor.masked_fill_(~of.tensor.isfinite().all(), math.nan)


def _norm(array: TensorArray, axis: int, keepdims: bool) -> TensorArray:
    return TensorArray(_torch().linalg.vector_norm(array.tensor, dim=axis, keepdim=keepdims))


def plain(given: Any) -> Any:
    """Return the tensor of a TensorArray, and all else as it is."""
    if isinstance(given, TensorArray):
        return given.tensor
    return tuple(map(plain, given)) if isinstance(given, tuple) else given


def _torch_dtype(dtype: Any) -> Any:
    return getattr(_torch(), getattr(dtype, "name", None) or np.dtype(dtype).name)


def _torch() -> Any:
    return import_module("torch")
