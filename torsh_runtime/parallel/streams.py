"""Provides streams of random numbers for dropout in models that are spread over a mesh.

They are the same on replicas, and differ where ranks have different elements. The generators are
those of the frameworks themselves, nn's and torch's, so activation checkpointing computes again
with the same numbers.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import framework_of
from torsh_runtime.framework.models import around_forward
from torsh_runtime.layout import Piece, TensorLayout
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.nn import random as nn_random
from torsh_runtime.nn.arrays import array_module
from torsh_runtime.parallel.layouts import coordinate_on, cut


@contextmanager
def random_stream(*key: object) -> Iterator[None]:
    """Draw random numbers of both frameworks in this block from a stream of `key` alone.

    Those after the block are as if it had drawn none.

    Args:
        *key: What the stream depends on, such as (seed, step, microbatch).

    Example:
        ```python
        with tr.random_stream(seed, step):
            output = model(batch)  # the same dropout whenever this step is repeated
        ```
    """
    with ExitStack() as held:
        _seed_nn(held, *key)
        _seed_torch(held, *key)
        yield


@contextmanager
def dropout_region(layout: TensorLayout, mesh: DeviceMesh) -> Iterator[None]:
    """Treat dropout in this block as that of tensors with this layout on the mesh.

    In models of nn the mask is this rank's piece of that of one process, if generators are alike on
    all ranks as they are after nn.manual_seed(); the tensors must be of the piece's shape. In
    models of torch each place along the sharded axes has a stream of its own, which is the same on
    replicas if torch's generators are.

    Args:
        layout: The layout of the tensors.
        mesh: The mesh.

    Raises:
        ConfigError: For a layout that does not fit the mesh, and in models of nn for tensors of a
            different shape.

    Example:
        ```python
        heads_cut = tr.TensorLayout((batch, heads, n, n), (("tp", 2, tr.Shard(1)),))
        with tr.dropout_region(heads_cut, mesh):
            weights = dropout(weights)  # of this rank's heads
        ```
    """
    coordinate = coordinate_on(mesh, "the region", layout)
    sharded = layout.sharded()
    with ExitStack() as held:
        held.enter_context(nn_random.drawing(partial(_drawn, layout, layout.piece(coordinate))))
        torch = sys.modules.get("torch")
        if torch is not None and sharded:
            number = int(torch.randint(1 << 62, ()))  # replicas draw the same, and go on alike
            _seed_torch(held, number, *(coordinate[axis] for axis in sharded))
        yield


def draw_by_name(model: Any, is_random: Callable[[Any], bool] | None = None) -> None:
    """Let each module that draws random numbers do so from a stream of its full name.

    The stream depends on what the generator was seeded with, too, so masks do not depend on which
    modules this rank has. A training in which `random_stream(seed, step, microbatch)` is around
    each forward pass then has the same masks on every pipeline as in one process. A module that is
    called several times in one pass draws different ones each time.

    Args:
        model: The model, of either framework.
        is_random: A function of a module that returns whether it draws; None: those that have a
            `dropout`, `dropout_p` or `p` that is a number above 0.

    Raises:
        TypeError: If `model` is no model.

    Example:
        ```python
        tr.draw_by_name(model)
        with tr.random_stream(seed, step, microbatch):
            output = model(batch)
        ```
    """
    framework = framework_of(model)
    for name, module in model.named_modules():
        if (is_random or draws)(module):
            around_forward(module, partial(_by_name, name, _Calls(framework.name)))


def _by_name(name: str, calls: _Calls, call: Any, inputs: Any, named: Any) -> Any:
    torch, number = sys.modules.get("torch"), calls.number()
    with ExitStack() as held:
        _seed_nn(held, nn_random.initial_seed(), name, number)
        if torch is not None:
            _seed_torch(held, torch.initial_seed(), name, number)
        return call(*inputs, **named)


class _Calls:
    """Numbers a module's calls in a stream, from 0. A call that activation checkpointing computes
    again keeps its number.

    A number that each call draws from the surrounding generator, whose state checkpointing puts
    back, tells whether it is such a one.
    """

    MOST = 1 << 12
    """Number of calls that are recognised again, such as those of microbatches whose backward
    pass is due.
    """

    def __init__(self, framework: str) -> None:
        self._is_torch = framework == "torch"
        self._known: dict[tuple[int, int], int] = {}
        self._seed: int | None = None
        self._next = 0

    def number(self) -> int:
        """Return the number of the present call."""
        seed, drawn = self._drawn()
        found = self._known.get((seed, drawn))
        if found is not None:
            return found
        if seed != self._seed:
            self._seed, self._next = seed, 0
        found = self._known[seed, drawn] = self._next
        self._next += 1
        if len(self._known) > self.MOST:
            del self._known[next(iter(self._known))]
        return found

    def _drawn(self) -> tuple[int, int]:
        """Return the generator's seed, and a random number."""
        if self._is_torch:
            torch = sys.modules["torch"]
            return torch.initial_seed(), int(torch.randint(1 << 62, ()))
        return nn_random.initial_seed(), int(nn_random.generator().integers(1 << 62))


def draws(module: Any) -> bool:
    """Return whether a module drops something: it has a probability above 0 under one of the
    names that layers of both frameworks give it."""
    told = [getattr(module, name, None) for name in ("dropout", "dropout_p", "p")]
    return any(
        isinstance(each, float | int) and not isinstance(each, bool) and each > 0 for each in told
    )


def _drawn(layout: TensorLayout, piece: Piece, source: Any, shape: tuple[int, ...]) -> Any:
    """Return this rank's part of the numbers that one process draws for the whole tensor, row by
    row."""
    if shape != piece.shape:
        raise ConfigError(
            f"dropout of a tensor of shape {shape} in a region of which this rank has {piece.shape}"
        )
    spans = [piece.spans_of(dim) for dim in range(len(shape))]
    inner = Piece.of_spans(layout.shape[1:], spans[1:])
    own = {at for span in spans[0] for at in range(*span)}
    rows = []
    for at in range(layout.shape[0]):
        row = source.random(layout.shape[1:], dtype=np.float32)
        if at in own:
            rows.append(cut(row, inner))
    return array_module(row).stack(rows) if rows else row[:0].reshape(shape)


def _seed_nn(held: ExitStack, *key: object) -> None:
    held.callback(nn_random.set_rng_state, nn_random.get_rng_state())
    nn_random.manual_seed(_seed_of(key))


def _seed_torch(held: ExitStack, *key: object) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    held.enter_context(torch.random.fork_rng(devices))
    torch.manual_seed(_seed_of(key))


def _seed_of(key: tuple[object, ...]) -> int:
    digest = hashlib.blake2b("/".join(map(repr, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
