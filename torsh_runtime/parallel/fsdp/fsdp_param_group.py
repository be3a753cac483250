"""Unshards and reshards the parameters of a unit together, and reduces their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError
from torsh_runtime.framework import Framework
from torsh_runtime.monitoring.marks import section
from torsh_runtime.parallel.fsdp.accounting import MemoryAccounting
from torsh_runtime.parallel.fsdp.flat_parameter import FlatParameter
from torsh_runtime.parallel.fsdp.fsdp_param import FSDPParam, StorageStrategy, Stored
from torsh_runtime.parallel.fsdp.registered_slots import slots_of
from torsh_runtime.parallel.fsdp.training_state import ShardedState
from torsh_runtime.parallel.fsdp.unit_options import UnitOptions
from torsh_runtime.parallel.replicas import Replicas
from torsh_runtime.transitions import Machine

_Placed = tuple[FlatParameter, StorageStrategy]
_Laid = tuple[FlatParameter, StorageStrategy, list[FSDPParam]]


class FSDPParamGroup:
    """While it is whole its parameters have their shapes, and no gradients but those that a
    backward pass is adding up. Else they are this rank's rows of them, and so are their gradients:
    what an optimizer takes."""

    def __init__(
        self,
        name: str,
        module: Any,
        framework: Framework,
        laid: list[_Placed],
        is_replicated: bool,
        options: UnitOptions,
    ) -> None:
        """Create the group. is_replicated: every rank has it whole."""
        self.name, self.module, self.is_replicated = name, module, is_replicated
        self._framework, self.options = framework, options
        self._place(laid, [slot for each in laid for slot in self._slots_of(*each)])
        self._machine = Machine("fsdp", ShardedState.SHARDED)
        self.is_lent = False
        """Whether it stays whole from its first use in a forward pass to the end of the backward
        pass, for other modules than its own use its parameters."""
        self._came: set[int] = set()
        self._reduced: list[FSDPParam] = []
        self._averaging: list[Work] = []
        self._is_for_replicas = False
        """Whether gradients have come that are not averaged over replicas."""
        for slot in self._slots:
            slot.fill()
            slot.be_own()
        for _, memory in laid:
            memory.reshard()

    def _slots_of(self, flat: FlatParameter, memory: StorageStrategy) -> list[FSDPParam]:
        return [FSDPParam(self._framework, flat, memory, each) for each in range(len(flat.names))]

    def _in(self, memory: StorageStrategy) -> list[FSDPParam]:
        return [slot for slot in self._slots if slot.memory is memory]

    def _place(self, laid: list[_Placed], slots: list[FSDPParam]) -> None:
        self.laid, self._slots = laid, slots
        self.is_common = any(memory.is_common for _, memory in laid)
        self.reduces_each = any(memory.reduces_each for _, memory in laid)
        self.averages_late = any(memory.averages_late for _, memory in laid)
        self._note_trained()

    def _note_trained(self) -> None:
        self.is_frozen_in_part = not all(flat.is_trained for flat, _ in self.laid)
        self._trained = [slot for slot in self._slots if slot.is_trained]

    def allocate_from_group(self, enable: bool) -> None:
        """Set whether flat parameters become whole in memory that is registered with the group."""
        for _, memory in self.laid:
            slots = slots_of(memory.group, self._framework, memory.shard) if enable else None
            memory.allocate_in(slots)

    def own(self, owners: Mapping[int, int]) -> None:
        """Move whole parameters to ranks that own them. All ranks call it, while it is sharded.

        owners: the rank that is to have a parameter, by id().
        """
        self.publish()
        self._rearrange(partial(self._moved, owners))

    def _rearrange(self, make: Callable[[FlatParameter, StorageStrategy], Iterator[_Laid]]) -> None:
        """Put other flat parameters in the place of each."""
        made = [each for flat, memory in self.laid for each in make(flat, memory)]
        slots = [slot for *_, own in made for slot in own]
        self._place([(flat, memory) for flat, memory, _ in made], slots)
        self.on_gradients(self._call)

    def _moved(
        self, owners: Mapping[int, int], flat: FlatParameter, memory: StorageStrategy
    ) -> Iterator[_Laid]:
        """Move parameters from one flat parameter to several others, if some get owners."""
        former, flats = self._in(memory), flat.split(owners)
        if flats == [flat]:
            yield flat, memory, former
            return
        for slot in former:
            slot.take_gradient_over()
        full, gradients = memory.full(), memory.full_gradients()
        by_id = {id(slot.parameter): slot for slot in former}
        for flat in flats:
            storage = memory.remade(flat)
            if gradients is not None:
                storage.prepare()
            slots = self._slots_of(flat, storage)
            for slot in slots:
                slot.succeed(by_id[id(slot.parameter)], full, gradients)
            storage.reshard()
            yield flat, storage, slots
        memory.discard()

    def begin_anew(self, store: Callable[[Stored], StorageStrategy]) -> bool:
        """Drop what is left of passes, and store the parameters anew, as the ranks' group was
        configured anew. All of them call it.

        Return whether this rank has other rows now, whose values the caller has to give.

        store: makes a storage.
        """
        self.unwatch()
        self.void()
        self.show_own()  # without waiting for what its former storage may be gathering
        self._machine.become(ShardedState.SHARDED, unit=self.name)
        self.is_lent = self._is_for_replicas = False
        if self.is_replicated:
            return False
        former = [flat for flat, _ in self.laid]
        self._rearrange(partial(self._renewed, store))
        return any(flat is not other for (flat, _), other in zip(self.laid, former, strict=True))

    def _renewed(
        self,
        store: Callable[[Stored], StorageStrategy],
        flat: FlatParameter,
        memory: StorageStrategy,
    ) -> Iterator[_Laid]:
        group = memory.group
        anew = flat.among(group.world_size, group.rank)
        storage = store(Stored(self._framework, anew, group, memory.ledger))
        slots = self._slots_of(anew, storage)
        for slot, other in zip(slots, self._in(memory), strict=True):
            slot.take_place(other, has_same=anew is flat)
        memory.discard()
        storage.reshard()
        yield anew, storage, slots

    def be_within(self, path: str, ledger: MemoryAccounting) -> None:
        """Become a unit of a larger model, in which the unit's own model is at `path`, and whose
        memory `ledger` counts."""
        self.name = f"{path}.{self.name}".rstrip(".")
        for flat, memory in self.laid:
            flat.names = [f"{path}.{name}" for name in flat.names]
            memory.ledger = ledger

    def named(self) -> list[tuple[str, Any]]:
        """Return all parameters of the unit with their names."""
        return [
            each for flat, _ in self.laid for each in zip(flat.names, flat.parameters, strict=True)
        ]

    @property
    def parameters(self) -> list[Any]:
        """Return all parameters of the unit."""
        return [slot.parameter for slot in self._slots]

    @property
    def is_whole(self) -> bool:
        """Return whether its parameters show whole values."""
        return self._machine.state is ShardedState.UNSHARDED

    def names(self) -> list[str]:
        """Return the names of the parameters that want gradients, by their numbers."""
        return [name for flat, _ in self.laid if flat.is_trained for name in flat.names]

    def gradients(self) -> list[Any]:
        """Return the gradients that its parameters have now."""
        return [each for slot in self._trained if (each := slot.parameter.grad) is not None]

    def on_gradients(self, call: Callable[[int], None]) -> None:
        """Call it with the number of each parameter whose gradient has come."""
        self._call = call
        for number, slot in enumerate(self._trained):
            slot.follow(partial(call, number))

    def publish(self) -> None:
        """Take over what a program may have changed in this rank's part."""
        for slot in self._slots:
            slot.take_over()
        for _, memory in self.laid:
            memory.publish()

    def train_more(self) -> None:
        """Take the gradients of parameters that have come to want some since they were wrapped."""
        if not any(slot.is_new for slot in self._slots):
            return
        for flat, _ in self.laid:
            flat.is_trained |= any(each.requires_grad for each in flat.parameters)
        self._note_trained()
        self.on_gradients(self._call)

    def prepare(self) -> None:
        """Prepare for gradients, which may come from now on."""
        self._came.clear()
        self.wait_for_replicas()  # in case that an exception has left some on their way
        self.drop_gradients()
        for flat, memory in self.laid:
            if flat.is_trained:
                memory.prepare()

    def drop_gradients(self) -> None:
        """Free gradients that the parameters have no more, as after zero_grad()."""
        if self.is_whole:
            return
        for memory in (each for _, each in self.laid if each.drops_gradients):
            if not any(slot.has_come for slot in self._in(memory)):
                for slot in self._in(memory):
                    slot.forget_gradient()
                memory.drop_gradients()

    def begin_unshard(self) -> None:
        """Begin to unshard all parameters of the unit."""
        if self._machine.state is ShardedState.SHARDED:
            for _, memory in self.laid:
                memory.begin_unshard()

    def unshard(self, shows_gradients: bool = False) -> None:
        """Make it whole. shows_gradients: leave those that there are where programs see them."""
        if self.is_whole:
            return
        with section("fsdp.unshard"):
            if self._machine.state is ShardedState.SHARDED:
                for _, memory in self.laid:
                    memory.unshard()
            for slot in self._slots:
                slot.be_held() if shows_gradients else slot.be_whole()
        self._machine.become(ShardedState.UNSHARDED, unit=self.name)

    def show_own(self) -> None:
        """Show this rank's parts as the parameters, as optimizers and zero_grad() know them, and
        keep the rest for later."""
        if self.is_whole:
            for slot in self._slots:
                slot.be_own()
            self._machine.become(ShardedState.GATHERED, unit=self.name)

    def reshard(self) -> None:
        """Free everything that is not this rank's."""
        self._free(lambda memory: memory.reshard())

    def reshard_early(self) -> None:
        """Free the same within a backward pass, except for values that a graph still needs."""
        self._free(lambda memory: memory.reshard_early())

    def reshard_after_forward(self) -> None:
        """Free what the options say, if a backward pass may follow; else the same."""
        frees = self.options.reshard_after_forward
        if frees is None:
            frees = bool(self.name)
        if frees is True or not self._framework.is_grad_enabled():
            self.reshard()
        elif frees is False:
            self.show_own()
        else:
            self._free(lambda memory: memory.reshard_to(frees))

    def _free(self, free: Callable[[StorageStrategy], None]) -> None:
        self.show_own()
        for _, memory in self.laid:  # it may have been asked for, and not used
            free(memory)
        self._machine.become(ShardedState.SHARDED, unit=self.name)

    def watch(self, kind: Any) -> None:
        """Watch for operations that take values of its parameters, unless it is whole."""
        if kind is not None and not self.is_whole:
            for slot in self._slots:
                self._framework.watch(slot.parameter, kind)

    def unwatch(self) -> None:
        """End the watch over its parameters."""
        for slot in self._slots:
            self._framework.watch(slot.parameter, None)

    def met(self) -> None:
        """Note that all ranks have met."""
        for _, memory in self.laid:
            memory.met()

    def take(self, number: int, averages: bool) -> bool:
        """Take a gradient that has come. Return whether it was the last one of the unit."""
        slot = self._trained[number]
        if not averages:
            slot.keep()
            return False
        scale = None if self.options.gradient_scale is None else self.options.gradient_scale(slot)
        slot.take(number in self._came, slot.memory.overwrites and self.is_freed_early, scale)
        self._came.add(number)
        return len(self._came) == len(self._trained)

    def keep(self) -> None:
        """Keep the gradients that have come while it is whole until they are to be averaged."""
        for slot in self._trained:
            slot.keep()

    def there(self) -> list[int]:
        """Return the numbers of parameters whose gradients are kept, or have come meanwhile."""
        for slot in self._trained:
            slot.end_former()
        return [each for each, s in enumerate(self._trained) if s.has_kept or s.has_come]

    @property
    def is_freed_early(self) -> bool:
        """Return whether it is resharded when its last gradient has come, and not when the
        backward pass has ended."""
        return bool(self.name) and not (self.is_frozen_in_part or self.is_lent)

    def finish(self, is_over: bool) -> list[int]:
        """Begin to reduce the gradients that have come. Return the numbers of their parameters.
        is_over: nothing needs its whole values until it is unsharded again."""
        numbers, self._came = sorted(self._came), set()
        self.wait_for_replicas()  # what comes in addition is averaged with the rest
        came = [self._trained[number] for number in numbers]
        with section("fsdp.reduce"):
            for _, memory in self.laid:
                here = [slot for slot in came if slot.memory is memory]
                if here:
                    self._finish(memory, here, is_over)
        self._reduced += came
        self._is_for_replicas |= bool(numbers)
        return numbers

    def _finish(self, memory: StorageStrategy, came: list[FSDPParam], is_over: bool) -> None:
        every = [slot for slot in self._trained if slot.memory is memory]
        missing = [slot for slot in every if slot not in came]
        adds = any(slot.adds for slot in came) or any(slot.has_gradient for slot in missing)
        fresh = [slot.number for slot in came if not slot.adds]
        memory.finish([slot.number for slot in missing], adds, fresh, is_over)

    def wait(self) -> None:
        """Wait for reduced gradients, and let parameters have them."""
        for _, memory in self.laid:
            memory.wait()
        for slot in self._reduced:
            slot.give(is_shown=not self.is_whole)
        self._reduced.clear()

    def settle(self) -> None:
        """Let gradients be the averages, after all ranks have waited."""
        for _, memory in self.laid:
            memory.settle()

    def void(self) -> None:
        """Forget what came in a pass that was broken off."""
        for wait in (self.wait_for_replicas, *(memory.wait for _, memory in self.laid)):
            with suppress(CommError):
                wait()
        came = {*self._reduced, *(self._trained[number] for number in self._came)}
        for slot in self._trained if self.is_whole else came:
            slot.void()
        self.forget_kept()
        self._came.clear()
        self._reduced.clear()

    def forget_kept(self) -> None:
        """Drop gradients that were to be averaged later."""
        for slot in self._trained:
            slot.forget_kept()

    def kept(self) -> list[int]:
        """Return the numbers of parameters whose gradients are kept."""
        return [number for number, slot in enumerate(self._trained) if slot.has_kept]

    def keep_zeros(self, number: int) -> None:
        """Keep zeros as the gradient of a parameter that this rank has not used."""
        self._trained[number].keep_zeros()

    def average(self, replicas: Replicas) -> None:
        """Begin to average this rank's gradients over ranks that have the same part, if any have
        been reduced that were not."""
        if not (self._is_for_replicas and self.options.averages_replicas):
            return
        self._is_for_replicas = False
        for flat, memory in self.laid:
            if memory.gradients is not None:
                group = replicas.of(flat.parameters[0])
                self._averaging.append(group.all_reduce(memory.gradients, ReduceOp.AVG, True))

    def wait_for_replicas(self) -> None:
        """Wait until gradients are averaged over ranks that have the same part."""
        for work in self._averaging:
            work.wait()
        self._averaging.clear()

    def summon(self) -> None:
        """Give the parameters whole values of their own; all ranks call it."""
        self.publish()
        for _, memory in self.laid:
            full = memory.full()
            for slot in self._in(memory):
                slot.be_copied(full)

    def dismiss(self, writeback: bool) -> None:
        """Take them away; with writeback this rank's part is kept."""
        for slot in self._slots:
            if writeback:
                slot.fill()
            slot.be_own()
        self.publish()
