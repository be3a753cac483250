"""Calls as bytes: pickles (protocol 5, PEP 574) with the arrays beside them."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

Reduced = tuple[Any, ...]


class _Reducers(dict[type, Callable[[Any], Reduced]]):
    """Reducers of this library, and those of copyreg for all other types."""

    def __missing__(self, kind: type) -> Callable[[Any], Reduced]:
        return copyreg.dispatch_table[kind]  # type: ignore[return-value]


_reducers = _Reducers()
_known: set[str] = set()
_FRAMEWORKS = {"torch", "cupy"}


class _Pickler(pickle.Pickler):
    dispatch_table = _reducers


def pack(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return the pickle of a value and the buffers that belong to it. Raises what pickle raises."""
    if not _known.issuperset(_FRAMEWORKS & sys.modules.keys()):
        _learn()
    buffers: list[pickle.PickleBuffer] = []
    if not _known:
        return pickle.dumps(value, 5, buffer_callback=buffers.append), buffers
    file = io.BytesIO()
    _Pickler(file, 5, buffer_callback=buffers.append).dump(value)
    return file.getvalue(), buffers


def unpack(pickled: Any, buffers: Sequence[Any]) -> Any:
    """Return the value of a pickle of pack(). The seal of its frame must have been checked."""
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301  (its seal was right)


def _learn() -> None:
    """Register the arrays of frameworks that the program has loaded."""
    if "torch" in sys.modules:
        from torsh_runtime.rpc.tensors import REDUCERS

        _reducers.update(REDUCERS)
        _known.add("torch")
    if "cupy" in sys.modules:
        _reducers[import_module("cupy").ndarray] = _reduce_cupy
        _known.add("cupy")


def _reduce_cupy(array: Any) -> Reduced:
    return _rebuild_cupy, (array.get(),)


def _rebuild_cupy(array: Any) -> Any:
    """Place the array on the receiver's current device."""
    return import_module("cupy").asarray(array)
