"""Random numbers for a part of a tensor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from torsh_runtime.parallel.tensor.axis import Axis

_FAR = 0x9E3779B97F4A7C15
"""Odd, so that no two ranks of an axis have one seed."""


def drawing_part(
    tensor: Any, axis: Axis, dim: int, cuts: tuple[int, ...] = ()
) -> AbstractContextManager[None]:
    """A block in which dropout draws for a tensor of which each rank has a part along `dim`: what
    one process would have drawn for that part in nn, a stream of each rank's own in torch. The
    random state afterwards is the same on all ranks, as it has to be before.

    cuts: where the ranks' parts end; none if they are equal.
    """
    own, index = tensor.shape[dim], axis.index
    start, size = (cuts[index], cuts[-1]) if cuts else (own * index, own * axis.size)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _own_stream(torch, tensor, index)
    part: AbstractContextManager[None] = import_module("torsh_runtime.nn.random").drawing_part(
        dim, start, size
    )
    return part


@contextmanager
def _own_stream(torch: Any, tensor: Any, index: int) -> Iterator[None]:
    """The seed comes from the stream that all ranks have in common, which activation checkpointing
    sets back for computing once more."""
    seed = int(torch.randint(2**62, ()))
    devices = [] if tensor.device.type == "cpu" else [tensor.device]
    with torch.random.fork_rng(devices):
        torch.manual_seed((seed + (index + 1) * _FAR) % 2**63)
        yield
