"""Shows each parameter whole or as the part that this rank has.

How a flat parameter becomes whole is up to its StorageStrategy; storage.py has the kinds. Each
counts the memory that it takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Framework, Values
from torsh_runtime.framework.models import kind_of, on_gradient, shaped
from torsh_runtime.framework.protocol import Call
from torsh_runtime.parallel.fsdp.accounting import MemoryAccounting
from torsh_runtime.parallel.fsdp.flat_parameter import FlatParameter
from torsh_runtime.parallel.fsdp.former_gradient import FormerGradient
from torsh_runtime.parallel.fsdp.registered_slots import RegisteredSlots


@dataclass(frozen=True, slots=True)
class Stored:
    """Describes what a storage is for: a flat parameter of the ranks of a group."""

    framework: Framework
    flat: FlatParameter
    group: ProcessGroup
    ledger: MemoryAccounting


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
    drops_gradients = False
    """Tells that the memory of gradients is freed when no parameter has any; on CPUs it costs more
    to allocate it than it saves."""
    overwrites = False
    """Tells that gradients may be reduced from the memory of `whole` when that is not needed."""
    reduces_each = False
    """Tells that a gradient is reduced when it comes, and not with the others."""

    averages_late = False
    """Tells that gradients are the averages of the ranks with parts only after settle()."""

    whole: Any
    shard: Any

    def __init__(self, stored: Stored) -> None:
        self._framework, self._flat = stored.framework, stored.flat
        self._group, self.ledger = stored.group, stored.ledger
        self._precision = self._flat.precision
        self._like: Any = self._flat.parameters[0]
        self.gradients: Any = None
        self._counted = 0

    @property
    def group(self) -> ProcessGroup:
        """Return the ranks that have parts of it."""
        return self._group

    def remade(self, flat: FlatParameter) -> Self:
        """Return a storage of the same kind for another flat parameter of the same ranks. All ranks
        call it."""
        return type(self)(self._described(flat))

    def _described(self, flat: FlatParameter) -> Stored:
        return Stored(self._framework, flat, self._group, self.ledger)

    # What follows does nothing in storages that have the flat parameter whole all the time.

    def allocate_in(self, slots: RegisteredSlots | None) -> None:  # noqa: B027
        """Let `whole` have its memory there from now on; None: in memory of the framework's."""

    def publish(self) -> None:  # noqa: B027
        """Let this rank's part, which may have changed, be what is made whole."""

    def begin_unshard(self) -> None:  # noqa: B027
        """Begin to make the flat parameter whole. All ranks call it in the same order."""

    def unshard(self) -> None:  # noqa: B027
        """Wait until it is whole."""

    def reshard(self) -> None:  # noqa: B027
        """Free everything that is not this rank's."""

    def reshard_early(self) -> None:
        """Free the same within a backward pass, unless a graph still needs values: then reshard()
        frees it."""
        self.reshard()

    def reshard_to(self, ranks: int) -> None:
        """Free everything that is not this rank's part among so many consecutive ranks, until it is
        made whole again. In common memory they have it together anyway."""
        self.reshard()

    @abstractmethod
    def prepare(self) -> None:
        """Allocate memory for gradients. All ranks call it in the same order."""

    def made_gradients(self) -> Any:
        """Return this rank's gradients, which have memory then, after prepare()."""
        return self.gradients

    def drop_gradients(self) -> None:  # noqa: B027  (see drops_gradients)
        """Free the memory of gradients, of which no parameter has any."""

    @abstractmethod
    def take(self, number: int, gradient: Any, adds: bool, is_freed: bool) -> None:
        """Take a parameter's gradient on this rank. adds: add it to the existing one. is_freed:
        `whole` is freed when the last gradient has come."""

    def finish(  # noqa: B027  (gradients may be reduced as they come)
        self, missing: Sequence[int], adds: bool, fresh: Sequence[int], is_over: bool
    ) -> None:
        """Begin to reduce the gradients, of which all have come but `missing`; these count as
        zeros. adds: add to the existing ones, except to those that are `fresh`. is_over: nothing
        needs `whole` until it is made whole again."""

    def wait(self) -> None:  # noqa: B027
        """Wait until this rank's gradients are reduced."""

    def settle(self) -> None:  # noqa: B027
        """Let `gradients` be the averages, after all ranks have waited."""

    def replace_gradient(self, number: int, values: Any) -> None:
        """Let other values be this rank's gradient of a parameter."""
        self.gradients[slice(*self._flat.span(number))] = values.reshape(-1)

    def met(self) -> None:  # noqa: B027  (most have nothing to do then)
        """Note that all ranks have met, and needed nothing that they had released before."""

    def full(self) -> Any:
        """Return a copy of all elements in the parameters' own dtype. All ranks call it. Before a
        rank has met the others it is zeros."""
        everything = self._new(self._flat.size, self._precision.own)
        if self._group.is_unmet:
            everything[...] = 0
        else:
            self._gather_into(everything, self.shard)
        return everything

    def full_gradients(self) -> Any:
        """Return a copy of the gradients of all ranks, or None if there are none. All ranks call
        it."""
        if self.gradients is None:
            return None
        everything = self._new(self._flat.size, self._precision.gradients)
        self._gather_into(everything, self.gradients)
        return everything

    def discard(self) -> None:
        """Count its memory as freed, which nothing uses any more."""
        self.ledger.give(self._counted)
        self._counted = 0

    def _gather_into(self, everything: Any, own: Any, async_op: bool = False) -> Work:
        if self._flat.is_even:
            return self._group.all_gather_into_tensor(everything, own, async_op)
        return self._group.all_gather(self._flat.parts(everything), own, async_op)

    def _new(self, size: int, dtype: str) -> Any:
        return self._framework.releasable(size, dtype, self._like)

    def _bytes(self, size: int, dtype: str) -> int:
        return size * self._framework.dtype(dtype).itemsize

    def _count(self, size: int, dtype: str) -> None:
        self._counted += self._bytes(size, dtype)
        self.ledger.take(self._bytes(size, dtype))

    def _give(self, size: int, dtype: str) -> None:
        self._counted -= self._bytes(size, dtype)
        self.ledger.give(self._bytes(size, dtype))


class FSDPParam:
    """Gives a parameter whole values, or those that are this rank's, and the gradient with them."""

    def __init__(
        self,
        framework: Framework,
        flat: FlatParameter,
        memory: StorageStrategy,
        number: int,
    ) -> None:
        self._framework, self._flat, self.memory, self.number = framework, flat, memory, number
        self.parameter = flat.parameters[number]
        self._stop_following: Call | None = None
        self._view = self._shaped(memory.whole)
        self._own = self._part(memory.shard)
        self._gradient: Any = None
        self._former: FormerGradient | None = None
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
        self.follow_no_more()
        if self.parameter.requires_grad:
            self._stop_following = on_gradient(self.parameter, call)

    def follow_no_more(self) -> None:
        """Call nothing when a gradient has come."""
        if self._stop_following is not None:
            self._stop_following()
            self._stop_following = None

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
                f"cast a model, as by .to(device, dtype), before it is wrapped, and change whole "
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
        self._show(self._view[...])  # a view of its own, which counts as a holder of the memory

    def be_held(self) -> None:
        """Show the parameter whole, beside the gradient that it has until another one comes."""
        if self.parameter.grad is not None:
            self._former = FormerGradient(self.parameter)
        self._gradient, self.parameter.data = None, self._view[...]

    def end_former(self) -> None:
        """Take what be_held() has left at the parameter, if a program has not dropped it."""
        if self._former is not None:
            self._gradient, self._former = self._former.end(), None

    def be_copied(self, full: Any) -> None:
        """Show the parameter whole in other memory, `full`."""
        self._show(self._shaped(full))

    def be_own(self) -> None:
        self.end_former()
        self._framework.watch(self.parameter, None)
        self.parameter.grad = None
        self.parameter.data = self._own
        if self._gradient is not None:
            self._framework.set_gradient(self.parameter, self._gradient)

    def keep(self) -> None:
        """Keep this rank's whole gradient until one is to be averaged."""
        self.end_former()
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

    def take(self, is_again: bool, is_freed: bool, scale: float | None) -> None:
        """Give the gradient, times `scale`, to be averaged. is_again: in addition to one that is on
        its way. is_freed: as StorageStrategy.take() has it."""
        if self._kept is None:
            gradient = self._taken()
        else:
            self.keep()
            gradient, self._kept = self._kept, None
        if scale is not None and gradient is not None:
            gradient = self._framework.cast(gradient, self._flat.precision.reduced) * scale
        if not is_again:
            self.adds = self._gradient is not None
            if self.adds and not self._framework.is_at(self._gradient, self._average()):
                self.memory.replace_gradient(self.number, self._gradient)
        self.memory.take(self.number, gradient, self.adds or is_again, is_freed)
        if not self.adds:
            self._gradient = self._average()

    def give(self, is_shown: bool) -> None:
        """Take the average as the gradient, after it has been reduced."""
        self._gradient = self._average()
        if is_shown:
            self._framework.set_gradient(self.parameter, self._gradient)

    def take_gradient_over(self) -> None:
        """Take the gradient that the parameter has between passes, which a program may have
        replaced."""
        self._gradient = None if self.parameter.grad is None else self.parameter.grad.data
        if self.has_gradient and not self._framework.is_at(self._gradient, self._average()):
            self.memory.replace_gradient(self.number, self._gradient)

    def succeed(self, other: FSDPParam, full: Any, gradients: Any) -> None:
        """Replace `other`, which had another part of the same parameter. full: the values of all
        ranks. gradients: those of all ranks, or None."""
        other.follow_no_more()
        other.be_copied(full)
        self.fill()
        self._kept = other._kept
        if other.has_gradient:
            first, last = self._flat.share(self.number)
            self._gradient = self._average()
            self._gradient.reshape(-1)[...] = other._shaped(gradients).reshape(-1)[first:last]
        self.be_own()

    def take_place(self, former: FSDPParam, has_same: bool) -> None:
        """Replace `former`, without its gradient. has_same: that has had the same part, in other
        memory; else this part gets its values later."""
        former.follow_no_more()
        self._own[...] = former.parameter.data if has_same else 0
        self.be_own()

    def forget_gradient(self) -> None:
        """Forget a gradient that the parameter has no more."""
        self._gradient = None

    def forget_kept(self) -> None:
        """Drop what keep() has, and what be_held() has left."""
        self._kept = None
        if self._former is not None:
            self._former.drop()

    def void(self) -> None:
        """Remove the gradient of the parameter."""
        self.end_former()
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
        gradients = self.memory.gradients
        return self._part(self.memory.made_gradients() if gradients is None else gradients)

    def _part(self, own: Any) -> Any:
        """Return this parameter's part of what this rank has of the unit."""
        first, _ = self._flat.span(self.number)
        return shaped(own, first, self._flat.own_shape(self.number))

    def _shaped(self, whole: Any) -> Any:
        start, shape = self._flat.starts[self.number], self._flat.shapes[self.number]
        return shaped(whole, start, shape)
