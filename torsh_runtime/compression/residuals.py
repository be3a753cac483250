"""Keeps arrays from step to step for each gradient, by its name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from torsh_runtime.compression.arrays import Array, array_module, on_host
from torsh_runtime.errors import ConfigError

if TYPE_CHECKING:
    from torsh_runtime.compression.base import Bucket


def spans(bucket: Bucket) -> Iterator[tuple[str, tuple[int, ...], slice]]:
    """Yield name, shape and place of each gradient in the bucket.

    Raises ValueError if the gradients do not fill the bucket.
    """
    begin = 0
    for name, shape in zip(bucket.names, bucket.shapes, strict=True):
        yield name, shape, slice(begin, begin := begin + math.prod(shape))
    if begin != bucket.array.size:
        raise ValueError(
            f"bucket {bucket.index()} has {bucket.array.size} elements, its shapes have {begin}"
        )


class Residuals:
    """Holds arrays by name. A bucket's arrays are contiguous; they move when buckets change."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self._flat: dict[tuple[str, ...], Array] = {}

    def of(self, bucket: Bucket, dtype: np.dtype[Any]) -> Array:
        """Return one flat array with what is kept for the bucket's gradients, zeros at first.

        Raises ConfigError if a gradient's size has changed.
        """
        names = tuple(bucket.names)
        flat = self._flat.get(names)
        if flat is None or flat.dtype != dtype or flat.size != bucket.array.size:
            flat = self._lay_out(bucket, dtype)
            mine = {*names}
            self._flat = {key: other for key, other in self._flat.items() if mine.isdisjoint(key)}
            self._flat[names] = flat
        return flat

    def _lay_out(self, bucket: Bucket, dtype: np.dtype[Any]) -> Array:
        xp = array_module(bucket.array)
        flat = xp.zeros(bucket.array.size, dtype)
        for name, shape, span in spans(bucket):
            kept = self.arrays.get(name)
            if kept is not None:
                if kept.size != math.prod(shape):
                    raise ConfigError(
                        f"the compressor's state has {kept.size} elements for gradient {name!r}, "
                        f"which has {math.prod(shape)}: load the state of this model, or none"
                    )
                flat[span] = xp.asarray(kept)
            self.arrays[name] = flat[span]
        return flat

    def clear(self) -> None:
        """Discard all arrays."""
        self.arrays.clear()
        self._flat.clear()

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the arrays by name, as numpy arrays."""
        return {name: on_host(array) for name, array in self.arrays.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace the arrays by those that state() returned."""
        self.clear()
        self.arrays.update({name: np.array(array) for name, array in state.items()})
