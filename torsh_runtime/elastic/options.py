"""Represents what a step changes beside parameters and the states of optimizers: options and
buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.arrays.raw import copy_in, copy_out, dtype_name
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES

Bytes = NDArray[np.uint8]
_OPTIONS = "options"


class Options:
    """Represents the options of optimizers, such as learning rates, as a part of a training."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers

    def state_dict(self) -> dict[str, Any]:
        """Return all options."""
        return {_OPTIONS: [options_of(each) for each in self._optimizers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take other options."""
        for optimizer, given in zip(self._optimizers, state[_OPTIONS], strict=True):
            give_options(optimizer, given)


class Buffers:
    """Represents the buffers of models as a part of a training."""

    def __init__(self, buffers: Callable[[], Iterable[Any]]) -> None:
        """Prepare to look for the buffers each time, as a forward pass may have assigned others."""
        self._buffers = buffers

    def state_dict(self) -> dict[str, Any]:
        """Return the bytes of all buffers."""
        return {"buffers": [bytes_of(each) for each in self._buffers()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take other values."""
        for buffer, kept in zip(self._buffers(), state["buffers"], strict=True):
            copy_in(buffer, kept)


def bytes_of(buffer: Any) -> Bytes:
    """Return a copy of the bytes of an array or tensor."""
    size = int(np.prod(tuple(buffer.shape), dtype=np.int64)) * ITEMSIZES[dtype_name(buffer)]
    kept = np.empty(size, np.uint8)
    copy_out(buffer, kept)
    return kept


def options_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return copies of the options of an optimizer's groups of parameters."""
    groups = ({n: v for n, v in each.items() if n != "params"} for each in optimizer.param_groups)
    return [copy.deepcopy(each) for each in groups]


def give_options(optimizer: Any, options: Sequence[Mapping[str, Any]]) -> None:
    """Give an optimizer's groups of parameters copies of these options."""
    for group, given in zip(optimizer.param_groups, options, strict=True):
        group.update(copy.deepcopy(given))
