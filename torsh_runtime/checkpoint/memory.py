"""Reads pieces of tensors from what a program has in memory, on each rank or on rank 0 alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torsh_runtime.arrays.raw import dtype_name, framework_of
from torsh_runtime.checkpoint.pieces import check_fits
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.errors import CheckpointError
from torsh_runtime.layout import ShardedTensor
from torsh_runtime.numpy_or_cupy import array_module
from torsh_runtime.parallel.collecting import take
from torsh_runtime.parallel.state.contents import Contents

Reads = Sequence[tuple[str, ShardedTensor]]


class InMemory:
    """Gives what `contents` have: a parallel.state.Source of this rank alone."""

    def __init__(self, contents: Contents) -> None:
        """Take the contents, whose tensors are whole or are the pieces that this rank needs."""
        self.values: Mapping[str, Any] = contents.values
        self._tensors, self._aliases = contents.tensors, contents.aliases
        self._kinds = {
            name: (dtype_name(each.values), each.piece.global_shape)
            for name, each in contents.tensors.items()
        }

    def names(self, prefix: str) -> list[str]:
        """Return the names of all tensors that begin with `prefix`."""
        return [name for name in self._kinds if name.startswith(prefix)]

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return dtype and shape of a whole tensor. Raises CheckpointError if there is none."""
        try:
            return self._kinds[self._aliases.get(name, name)]
        except KeyError:
            raise CheckpointError(f"the state has no {name!r}") from None

    def check(self, name: str, target: ShardedTensor) -> None:
        """Raise CheckpointError unless the tensor exists and can be read into this target."""
        check_fits("the state", name, self.kind(name), target)
        if getattr(target.values, "is_meta", False):
            raise CheckpointError(f"{name!r} is on the meta device, where it has no values")
        held = self._tensors.get(self._aliases.get(name, name))
        if held is not None and not held.piece.is_whole and held.piece != target.piece:
            raise CheckpointError(
                f"{name!r} is elements {held.piece.label} of the tensor in the state, and this "
                f"rank has {target.piece.label}: pass whole tensors"
            )

    def read(self, name: str, target: ShardedTensor) -> None:
        """Read the target's piece of a tensor into its values."""
        held = self._tensors[self._aliases.get(name, name)]
        values = _like(held.values, target.values)
        if held.piece.is_whole:
            take(target.values, target.piece, values)
        else:
            _set(target.values, values.reshape(target.values.shape))

    def whole(self, name: str, framework: str) -> Any:
        """Return a whole tensor, or this rank's piece of it as a ShardedTensor."""
        held = self._tensors[self._aliases.get(name, name)]
        return held.values if held.piece.is_whole else held

    def read_all(self, reads: Reads) -> None:
        """Read all of these."""
        for name, target in reads:
            self.read(name, target)


class FromFirst(InMemory):
    """Gives what rank 0 has to all ranks, a tensor at a time."""

    def __init__(self, contents: Contents, ranks: Ranks) -> None:
        """Receive what rank 0 has. All ranks call it; the others' contents are not used."""
        super().__init__(contents)
        self._ranks = ranks
        own = [self._kinds, self.values, self._aliases] if ranks.rank == 0 else []
        kinds, self.values, self._aliases = json.loads(ranks.texts(json.dumps(own))[0])
        self._kinds = {name: (dtype, tuple(shape)) for name, (dtype, shape) in kinds.items()}

    def read_all(self, reads: Reads) -> None:
        """Read all of these. All ranks call it. Each needs memory for one whole tensor."""
        wanted: dict[str, list[ShardedTensor]] = {}
        for name, target in reads:
            wanted.setdefault(self._aliases.get(name, name), []).append(target)
        for name, (dtype, shape) in self._kinds.items():
            own = self._tensors[name].values if self._ranks.rank == 0 else None
            like = next((each.values for each in wanted.get(name, ())), None)
            if like is None:  # any memory for the bytes will do
                dtype, shape = "uint8", (math.prod(shape) * ITEMSIZES[dtype],)
            whole = self._ranks.broadcast_tensor(_on_host(own), dtype, shape, framework_of(like))
            for target in wanted.get(name, ()):
                take(target.values, target.piece, _like(whole, target.values))


def _on_host(values: Any) -> Any:
    if framework_of(values) == "torch":
        return values.detach().cpu()
    return values.get() if array_module(values) is not np else values


def _like(values: Any, target: Any) -> Any:
    """Return values as an array or tensor that can be copied into the target."""
    if framework_of(target) == "torch":
        import torch

        return torch.as_tensor(values).detach()
    return np.asarray(_on_host(values))


def _set(target: Any, values: Any) -> None:
    if hasattr(target, "copy_"):
        target.copy_(values)
    else:
        target[...] = array_module(target).asarray(values)
