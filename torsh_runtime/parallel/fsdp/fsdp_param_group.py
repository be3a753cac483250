"""Unshards and reshards the parameters of a unit together, and reduces their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any, cast

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError, ConfigError
from torsh_runtime.framework import Framework
from torsh_runtime.framework.models import has_hook_of_program
from torsh_runtime.monitoring.marks import section
from torsh_runtime.parallel.fsdp.accounting import MemoryAccounting
from torsh_runtime.parallel.fsdp.flat_parameter import FlatParameter
from torsh_runtime.parallel.fsdp.fsdp_param import FSDPParam, StorageStrategy, Stored
from torsh_runtime.parallel.fsdp.registered_slots import slots_of
from torsh_runtime.parallel.fsdp.storage import common_storage
from torsh_runtime.parallel.fsdp.unit_options import UnitOptions
from torsh_runtime.parallel.replicas import Replicas
from torsh_runtime.transitions import Machine


class ShardedState(StrEnum):
    """Tells where the parameters of a unit are, after torch's class of this name."""

    SHARDED = "sharded"
    """Ranks have their parts, and may be gathering the rest."""
    GATHERED = "gathered"
    """Whole values are here, and the parameters show this rank's part."""
    UNSHARDED = "unsharded"
    """Whole values are here, and the parameters show them."""


class FSDPParamGroup:
    """While it is whole its parameters have their shapes, and no gradients but those that a
    backward pass is adding up. Else they are this rank's rows of them, and so are their gradients:
    what an optimizer takes."""

    def __init__(
        self,
        name: str,
        module: Any,
        framework: Framework,
        laid: list[tuple[FlatParameter, StorageStrategy]],
        is_replicated: bool,
        options: UnitOptions,
    ) -> None:
        """Create the group. is_replicated: every rank has it whole."""
        self.name, self.module, self.is_replicated = name, module, is_replicated
        self._framework = framework
        self.options = options
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
        numbers = range(len(flat.parameters))
        return [FSDPParam(self._framework, flat, memory, number) for number in numbers]

    def _place(
        self, laid: list[tuple[FlatParameter, StorageStrategy]], slots: list[FSDPParam]
    ) -> None:
        self.laid, self._slots = laid, slots
        self.is_common = any(memory.is_common for _, memory in laid)
        self.reduces_each = any(memory.reduces_each for _, memory in laid)
        self._drops_gradients = any(memory.drops_gradients for _, memory in laid)
        self._overwrites = any(memory.overwrites for _, memory in laid)
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
        laid, slots = [], []
        for flat, memory in self.laid:
            here = [slot for slot in self._slots if slot.memory is memory]
            flats = flat.split(owners)
            if flats == [flat]:
                laid.append((flat, memory))
                slots += here
            else:
                for each in self._moved(here, memory, flats):
                    laid.append((each[0], each[1]))
                    slots += each[2]
        self._place(laid, slots)
        self.on_gradients(self._call)

    def _moved(
        self, former: list[FSDPParam], memory: StorageStrategy, flats: list[FlatParameter]
    ) -> Iterator[tuple[FlatParameter, StorageStrategy, list[FSDPParam]]]:
        """Move parameters from one flat parameter to several others."""
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

    def begin_anew(self) -> None:
        """Drop what is left of passes, and share memory with the ranks of its group, which is of
        one node and was configured anew. All of them call it."""
        self.unwatch()
        self.void()
        self.reshard()
        self.is_lent = self._is_for_replicas = False
        if self.is_replicated:
            return
        laid, slots = [], []
        for flat, memory in self.laid:
            storage = common_storage(Stored(self._framework, flat, memory.group, memory.ledger))
            made = self._slots_of(flat, storage)
            former = [slot for slot in self._slots if slot.memory is memory]
            for slot, other in zip(made, former, strict=True):
                slot.take_place(other)
            memory.discard()
            laid.append((flat, cast(StorageStrategy, storage)))
            slots += made
        self._place(laid, slots)
        self.on_gradients(self._call)

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
        given = [slot.parameter.grad for slot in self._trained]
        return [gradient for gradient in given if gradient is not None]

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

    def check_hooks(self) -> None:
        """Raise ConfigError if a program wants gradients when they come, which are not averaged
        then."""
        if any(has_hook_of_program(slot.parameter) for slot in self._slots):
            hooked = (name for name, each in self.named() if has_hook_of_program(each))
            raise ConfigError(
                f"a hook of register_post_accumulate_grad_hook() on {next(hooked)!r} would be "
                f"called before gradients are averaged, and find none: call what it does after the "
                f"backward pass"
            )

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
        if self._averaging:  # which only an exception has left on their way
            self.wait_for_replicas()
        if self._drops_gradients:
            self.drop_gradients()
        for flat, memory in self.laid:
            if flat.is_trained:
                memory.prepare()

    def drop_gradients(self) -> None:
        """Free gradients that the parameters have no more, as after zero_grad()."""
        if self._machine.state is ShardedState.UNSHARDED:
            return
        for _, memory in self.laid:
            here = [slot for slot in self._slots if slot.memory is memory]
            if memory.drops_gradients and not any(slot.has_come for slot in here):
                for slot in here:
                    slot.forget_gradient()
                memory.drop_gradients()

    def begin_unshard(self) -> None:
        """Begin to unshard all parameters of the unit."""
        if self._machine.state is ShardedState.SHARDED:
            for _, memory in self.laid:
                memory.begin_unshard()

    def unshard(self) -> None:
        """Make it whole."""
        if self._machine.state is ShardedState.UNSHARDED:
            return
        with section("fsdp.unshard"):
            if self._machine.state is ShardedState.SHARDED:
                for _, memory in self.laid:
                    memory.unshard()
            for slot in self._slots:
                slot.be_whole()
        self._machine.become(ShardedState.UNSHARDED, unit=self.name)

    def show_own(self) -> None:
        """Show this rank's parts as the parameters, as optimizers and zero_grad() know them, and
        keep the rest for later."""
        if self._machine.state is ShardedState.UNSHARDED:
            for slot in self._slots:
                slot.be_own()
            self._machine.become(ShardedState.GATHERED, unit=self.name)

    def reshard(self) -> None:
        """Free everything that is not this rank's."""
        self.show_own()
        for _, memory in self.laid:  # it may have been asked for, and not used
            memory.reshard()
        self._machine.become(ShardedState.SHARDED, unit=self.name)

    def reshard_early(self) -> None:
        """Free the same within a backward pass, except for values that a graph still needs."""
        self.show_own()
        for _, memory in self.laid:
            memory.reshard_early()
        self._machine.become(ShardedState.SHARDED, unit=self.name)

    def watch(self, kind: Any) -> None:
        """Watch for operations that take values of its parameters, unless it is whole."""
        if kind is not None and self._machine.state is not ShardedState.UNSHARDED:
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
        slot.take(number in self._came, self._overwrites and self.is_freed_early)
        self._came.add(number)
        return len(self._came) == len(self._trained)

    @property
    def has_kept(self) -> bool:
        """Return whether gradients are kept to be averaged later."""
        return any(slot.has_kept for slot in self._trained)

    def keep(self) -> None:
        """Keep the gradients that have come while it is whole until they are to be averaged."""
        for slot in self._trained:
            slot.keep()

    def there(self) -> list[int]:
        """Return the numbers of parameters whose gradients are kept, or have come while it is
        whole."""
        slots = enumerate(self._trained)
        return [number for number, slot in slots if slot.has_kept or slot.has_come]

    @property
    def is_freed_early(self) -> bool:
        """Return whether it is resharded when its last gradient has come, and not when the
        backward pass has ended."""
        return bool(self.name) and not (self.is_frozen_in_part or self.is_lent)

    def finish(self, is_over: bool) -> list[int]:
        """Begin to reduce the gradients that have come. Return the numbers of their parameters.
        is_over: nothing needs its whole values until it is unsharded again."""
        numbers = sorted(self._came)
        self._came.clear()
        if self._averaging:
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
            slot.give(is_shown=self._machine.state is not ShardedState.UNSHARDED)
        self._reduced.clear()

    def settle(self) -> None:
        """Let gradients be the averages, after all ranks have waited."""
        for _, memory in self.laid:
            memory.settle()

    def void(self) -> None:
        """Forget what came in a pass that was broken off."""
        with suppress(CommError):
            self.wait_for_replicas()
        for _, memory in self.laid:
            with suppress(CommError):
                memory.wait()
        came = {*self._reduced, *(self._trained[number] for number in self._came)}
        is_whole = self._machine.state is ShardedState.UNSHARDED
        for slot in self._trained if is_whole else came:
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
                work = group.all_reduce(memory.gradients, ReduceOp.AVG, async_op=True)
                self._averaging.append(work)

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
            for slot in self._slots:
                if slot.memory is memory:
                    slot.be_copied(full)

    def dismiss(self, writeback: bool) -> None:
        """Take them away; with writeback this rank's part is kept."""
        for slot in self._slots:
            if writeback:
                slot.fill()
            slot.be_own()
        self.publish()
