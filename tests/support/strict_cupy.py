"""A stand-in for cupy that computes with numpy, and like cupy refuses numpy's own arrays.

It has only functions, methods and keyword arguments that cupy has, so code that gets through is
free of calls that are numpy's alone.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

_FUNCTIONS = """
    arange array ascontiguousarray asarray broadcast_to clip concatenate cos einsum empty empty_like
    exp expand_dims full isfinite log maximum minimum moveaxis ones_like pad put_along_axis reshape
    sign sin split sqrt stack subtract take_along_axis tanh triu where zeros zeros_like divide
"""
_METHODS = """
    argmax argmin astype copy item max mean min reshape squeeze sum swapaxes tolist transpose var
"""
_ATTRIBUTES = "dtype ndim shape size strides"
_OPERATORS = "add sub mul truediv pow matmul eq ne lt le gt ge and or"
_MAKERS = ("array", "asarray")
_REDUCTIONS = frozenset({"argmax", "argmin", "max", "mean", "min", "sum", "var"})


class ndarray:  # noqa: N801  (cupy's name)
    """An array on the stand-in's device."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]
    device = SimpleNamespace(id=0)

    def __init__(self, host: Any) -> None:
        self._host = np.asarray(host)

    def get(self) -> np.ndarray:
        return self._host.copy()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("an array of the device is not converted by itself; call get()")

    @property
    def base(self) -> Any:
        return self._host.base

    @property
    def T(self) -> ndarray:  # noqa: N802
        return ndarray(self._host.T)

    def __getitem__(self, index: Any) -> ndarray:
        return ndarray(self._host[_host(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._host[_host(index)] = _host(value)

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __float__(self) -> float:
        return float(self._host)

    def __int__(self) -> int:
        return int(self._host)

    def __bool__(self) -> bool:
        return bool(self._host)


def _host(value: Any) -> Any:
    """What numpy shall see of an argument. TypeError for arrays that are numpy's."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError("cupy does not take numpy's arrays")
    if isinstance(value, (list, tuple)):
        return type(value)(_host(each) for each in value)
    return value


def _device(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return ndarray(value)
    return [_device(each) for each in value] if isinstance(value, (list, tuple)) else value


def _function(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        values = [_host(arg) for arg in args]
        named = {name: _host(value) for name, value in kwargs.items()}
        if out is None:
            return _device(function(*values, **named))
        function(*values, out=out._host, **named)
        return out

    return call


def _method(name: str) -> Any:
    def call(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        if name in _REDUCTIONS and not {*kwargs} <= {"axis", "keepdims", "dtype", "out", "ddof"}:
            raise TypeError(f"cupy's {name}() has no such arguments: {kwargs}")
        values = [_host(arg) for arg in args]
        return _device(getattr(self._host, name)(*values, **kwargs))

    return call


def _operator(name: str) -> Any:
    def call(self: ndarray, other: Any) -> Any:
        if isinstance(other, np.ndarray) or not isinstance(
            other, (ndarray, int, float, np.generic)
        ):
            return NotImplemented
        return _device(getattr(self._host, name)(_host(other)))

    return call


def _in_place(name: str) -> Any:
    def call(self: ndarray, other: Any) -> ndarray:
        self._host = getattr(self._host, f"__i{name}__")(_host(other))
        return self

    return call


for _name in _METHODS.split():
    setattr(ndarray, _name, _method(_name))
for _name in _ATTRIBUTES.split():
    setattr(ndarray, _name, property(lambda self, name=_name: getattr(self._host, name)))
for _name in _OPERATORS.split():
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))
for _name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    setattr(ndarray, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("add", "sub", "mul", "truediv"):
    setattr(ndarray, f"__i{_name}__", _in_place(_name))
for _name in ("neg", "abs", "invert"):
    setattr(
        ndarray, f"__{_name}__", lambda self, n=_name: _device(getattr(self._host, f"__{n}__")())
    )


def module() -> ModuleType:
    """What stands for the package."""
    cupy: Any = ModuleType("cupy")
    cupy.ndarray = ndarray
    for name in _FUNCTIONS.split():
        setattr(cupy, name, _function(getattr(np, name)))
    cupy.add = SimpleNamespace(at=_function(np.add.at))
    for name in _MAKERS:
        setattr(cupy, name, _maker(getattr(np, name)))
    cupy.linalg = SimpleNamespace(norm=_function(np.linalg.norm))
    tricks = SimpleNamespace(as_strided=_function(np.lib.stride_tricks.as_strided))
    cupy.lib = SimpleNamespace(stride_tricks=tricks)
    cupy.random = SimpleNamespace(default_rng=_Generator)
    return cupy


def _maker(make: Any) -> Any:
    """Of arrays from the host's: the way onto the device."""

    def call(value: Any, dtype: Any = None) -> ndarray:
        if make is np.asarray and isinstance(value, ndarray) and dtype in (None, value._host.dtype):
            return value
        return ndarray(np.array(value._host if isinstance(value, ndarray) else value, dtype=dtype))

    return call


class _Generator:
    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def random(self, shape: Any, dtype: Any) -> ndarray:
        return ndarray(self._generator.random(shape, dtype=dtype))
