"""Places parameters in flat ones, and shows each whole or as the part that this rank has.

How a flat parameter becomes whole is up to its StorageStrategy; storage.py has the kinds. Each
counts the memory that it takes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Framework, Tensor, Values
from torsh_runtime.framework.models import kind_of, on_gradient, shaped
from torsh_runtime.framework.protocol import Call
from torsh_runtime.layout import Piece, even_cuts
from torsh_runtime.parallel.fsdp.config import Precision


class FlatParameter:
    """Tells where each parameter is placed, and which elements belong to which rank: `cuts`,
    without padding."""

    def __init__(
        self,
        named: Sequence[tuple[str, Tensor]],
        precision: Precision,
        parts: int,
        part: int,
    ) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.precision = precision
        self.shapes: list[tuple[int, ...]] = [
            tuple(parameter.shape) for parameter in self.parameters
        ]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.starts = [0, *accumulate(self.sizes)][:-1]
        self.size = sum(self.sizes)
        self.part, self.cuts = part, even_cuts(self.size, parts)
        self.start, self.end = self.cuts[part], self.cuts[part + 1]
        self.is_trained = self.parameters[0].requires_grad

    @property
    def own_size(self) -> int:
        """Return the number of elements of this rank's part."""
        return self.end - self.start

    def share(self, number: int) -> tuple[int, int]:
        """Return this rank's elements of one of the parameters: the first, and the one after the
        last. (0, 0) means that it has none."""
        start = self.starts[number]
        first, last = max(self.start - start, 0), min(self.end - start, self.sizes[number])
        return (first, last) if first < last else (0, 0)

    def span(self, number: int) -> tuple[int, int]:
        """Return this rank's elements of one of the parameters as positions in this rank's part."""
        first, last = self.share(number)
        offset = self.starts[number] - self.start
        return (first + offset, last + offset) if first < last else (0, 0)

    def piece(self, number: int) -> Piece:
        """Return the piece of one of the parameters that this rank has."""
        shape = self.shapes[number]
        return Piece(shape, (0,) * len(shape), shape, *self.share(number))

    def parts(self, whole: Values) -> list[Values]:
        """Return each rank's part of a flat tensor of this layout."""
        return [whole[start:end] for start, end in pairwise(self.cuts)]


class StorageStrategy(ABC):
    """Stores one flat parameter.

    whole: all elements, in the dtype that is computed with, to be looked at between unshard() and
        reshard() only.
    shard: this rank's, in the parameters' own dtype.
    gradients: this rank's, of the last backward passes; None before the first.
    """

    is_common = False
    """Tells that ranks share one `whole`, so that all must have finished with it before an owner
    may change its part."""
    reduces_each = False
    """Tells that a gradient is reduced when it comes, and not with the others."""

    whole: Any
    shard: Any

    def __init__(
        self,
        framework: Framework,
        flat: FlatParameter,
        group: ProcessGroup,
        ledger: MemoryAccounting,
    ) -> None:
        self._framework, self._flat, self._group, self.ledger = framework, flat, group, ledger
        self._precision = flat.precision
        self.gradients: Any = None

    @property
    def group(self) -> ProcessGroup:
        """Return the ranks that have parts of it."""
        return self._group

    @abstractmethod
    def publish(self) -> None:
        """Let this rank's part, which may have changed, be what is made whole."""

    @abstractmethod
    def begin_unshard(self) -> None:
        """Begin to make the flat parameter whole. All ranks call it in the same order."""

    @abstractmethod
    def unshard(self) -> None:
        """Wait until it is whole."""

    @abstractmethod
    def reshard(self) -> None:
        """Free everything that is not this rank's."""

    @abstractmethod
    def prepare(self) -> None:
        """Allocate memory for gradients. All ranks call it in the same order."""

    @abstractmethod
    def take(self, number: int, gradient: Any, adds: bool) -> None:
        """Take a parameter's gradient on this rank. adds: add it to the existing one."""

    @abstractmethod
    def finish(self, missing: Sequence[int], adds: bool, fresh: Sequence[int]) -> None:
        """Begin to reduce the gradients, of which all have come but `missing`; these count as
        zeros. adds: add to the existing ones, except to those that are `fresh`."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until this rank's gradients are reduced."""

    @abstractmethod
    def settle(self) -> None:
        """Let `gradients` be the averages, after all ranks have waited."""

    def met(self) -> None:  # noqa: B027  (most have nothing to do then)
        """Note that all ranks have met, and needed nothing that they had released before."""

    def full(self) -> Any:
        """Return a copy of all elements in the parameters' own dtype. All ranks call it."""
        everything = self._new(self._flat.size, self._precision.own)
        self._group.all_gather(self._flat.parts(everything), self.shard)
        return everything

    def _new(self, size: int, dtype: str) -> Any:
        return self._framework.releasable(size, dtype, self._flat.parameters[0])

    def _bytes(self, size: int, dtype: str) -> int:
        return size * self._framework.dtype(dtype).itemsize

    def _count(self, size: int, dtype: str) -> None:
        self.ledger.take(self._bytes(size, dtype))


class FSDPParam:
    """Gives a parameter whole values, or those that are this rank's, and the gradient with them."""

    def __init__(
        self,
        framework: Framework,
        flat: FlatParameter,
        memory: StorageStrategy,
        number: int,
        keeps_shape: bool,
    ) -> None:
        """Create the parameter's views. keeps_shape: this rank has all of it."""
        self._framework, self._flat, self.memory, self.number = framework, flat, memory, number
        self.parameter = flat.parameters[number]
        self._stop_following: Call | None = None
        self._keeps_shape = keeps_shape
        self._view = self._shaped(memory.whole)
        self._own = self._part(memory.shard)
        self._gradient: Any = None
        self._kept: Any = None
        self.adds = False

    @property
    def has_gradient(self) -> bool:
        """Return whether there was a gradient before the present backward pass."""
        return self._gradient is not None

    @property
    def has_kept(self) -> bool:
        """Return whether a gradient is kept to be averaged later."""
        return self._kept is not None

    @property
    def has_come(self) -> bool:
        """Return whether a backward pass has left a gradient, while the parameter is whole."""
        return self.parameter.grad is not None

    @property
    def is_trained(self) -> bool:
        """Return whether gradients of its kind are reduced."""
        return self._flat.is_trained

    @property
    def is_new(self) -> bool:
        """Return whether it wants gradients that no hook follows yet."""
        return self._stop_following is None and self.parameter.requires_grad

    def follow(self, call: Call) -> None:
        """Call it when a gradient has come, and nothing that was to be called before."""
        if self._stop_following is not None:
            self._stop_following()
            self._stop_following = None
        if self.parameter.requires_grad:
            self._stop_following = on_gradient(self.parameter, call)

    def take_over(self) -> None:
        """Take the values that a program has given the parameter as memory of its own, as by
        `parameter.data = values`. Raises ConfigError for those of another shape or dtype."""
        parameter, own = self.parameter, self._own
        if self._framework.is_at(parameter.data, own):
            return
        shape, kind = tuple(parameter.shape), kind_of(parameter)
        if shape != tuple(own.shape) or kind != kind_of(own):
            raise ConfigError(
                f"parameter {self._flat.names[self.number]!r} has become {kind[0]} {shape} on "
                f"{kind[1]} since the model was wrapped, and this rank's part of it is "
                f"{kind_of(own)[0]} {tuple(own.shape)} on {kind_of(own)[1]}: move and "
                f"cast a model, as by .to(dtype), before it is wrapped, and change whole "
                f"parameters within summon_full_params()"
            )
        own[...] = parameter.data
        parameter.data = own

    def fill(self) -> None:
        """Put this rank's part of its values into memory."""
        values = self.parameter.data.reshape(-1)
        first, last = self._flat.share(self.number)
        self._own.reshape(-1)[...] = values[first:last]

    def be_whole(self) -> None:
        self._show(self._view)

    def be_copied(self, full: Any) -> None:
        """Show the parameter whole in other memory, `full`."""
        self._show(self._shaped(full))

    def be_own(self) -> None:
        self._framework.watch(self.parameter, None)
        self.parameter.grad = None
        self.parameter.data = self._own
        if self._gradient is not None:
            self._framework.set_gradient(self.parameter, self._gradient)

    def keep(self) -> None:
        """Keep this rank's whole gradient until one is to be averaged."""
        gradient = self._taken()
        if self._kept is None:
            self._kept = gradient
        elif gradient is not None:
            self._kept += gradient

    def keep_zeros(self) -> None:
        """Keep zeros as this rank's gradient, if none is kept."""
        if self._kept is None:
            flat, like = self._flat, self.parameter
            shape = flat.shapes[self.number]
            self._kept = self._framework.zeros(shape, flat.precision.computed, like)

    def take(self, is_again: bool) -> None:
        """Give the gradient to be averaged; is_again: in addition to one that is on its way."""
        self.keep()
        gradient, self._kept = self._kept, None
        if not is_again:
            self.adds = self._gradient is not None
            if self.adds and not self._framework.is_at(self._gradient, self._average()):
                self._average()[...] = self._gradient
        self.memory.take(self.number, gradient, self.adds or is_again)
        if not self.adds:
            self._gradient = self._average()

    def give(self, is_shown: bool) -> None:
        """Take the average as the gradient, after it has been reduced."""
        self._gradient = self._average()
        if is_shown:
            self._framework.set_gradient(self.parameter, self._gradient)

    def forget_kept(self) -> None:
        """Drop what keep() has."""
        self._kept = None

    def void(self) -> None:
        """Remove the gradient of the parameter."""
        self._gradient = self.parameter.grad = None

    def _show(self, values: Any) -> None:
        self._framework.watch(self.parameter, None)
        self._gradient = self._taken()
        self.parameter.data = values

    def _taken(self) -> Values | None:
        """Take the values of the parameter's gradient away from it."""
        gradient, self.parameter.grad = self.parameter.grad, None
        return None if gradient is None else gradient.data

    def _average(self) -> Any:
        return self._part(self.memory.gradients)

    def _part(self, own: Any) -> Any:
        """Return this parameter's part of what this rank has of the unit."""
        if self._keeps_shape:
            return self._shaped(own)
        first, last = self._flat.span(self.number)
        further = len(self._flat.shapes[self.number]) - 1  # which programs group parameters by
        return shaped(own, first, (last - first, *(1,) * further))

    def _shaped(self, whole: Any) -> Any:
        start, shape = self._flat.starts[self.number], self._flat.shapes[self.number]
        return shaped(whole, start, shape)


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Counts bytes of this rank's parameters and gradients.

    Its equal part of what a node's ranks have in common is included. The optimizer's state,
    activations and the caller's own memory are not.

    Example:
        ```python
        stats = model.memory_stats()
        print(f"peak {stats.peak / 2**20:.0f} MiB, {stats.saved / 2**20:.0f} MiB saved")
        ```
    """

    parameters: int
    """Bytes of its parameters, sharded or replicated, all the time."""
    current: int
    """Bytes of parameters and gradients, sharded and whole ones, now."""
    peak: int
    """The largest value of `current` so far."""
    saved: int
    """Bytes that its parameters need less than the whole model's."""
    num_all_gathers: int
    """Number of times that a unit's parameters were gathered, or were found whole in the node."""
    num_reduce_scatters: int
    """Number of times that gradients were reduced."""


class MemoryAccounting:
    """Counts bytes in use, and collectives."""

    def __init__(self) -> None:
        self.current = self.peak = self.gathers = self.scatters = 0

    def take(self, num_bytes: int) -> None:
        """Count `num_bytes` of memory as in use."""
        self.current += num_bytes
        self.peak = max(self.peak, self.current)

    def give(self, num_bytes: int) -> None:
        """Count `num_bytes` of memory as freed."""
        self.current -= num_bytes

    def touch(self, num_bytes: int) -> None:
        """Count `num_bytes` that were in use only for a moment."""
        self.peak = max(self.peak, self.current + num_bytes)

    def absorb(self, other: MemoryAccounting) -> None:
        """Add what another accounting has counted."""
        self.gathers += other.gathers
        self.scatters += other.scatters
        self.take(other.current)
