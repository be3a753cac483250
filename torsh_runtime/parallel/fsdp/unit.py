"""A unit: parameters that are made whole and let go together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.modules.base import ModuleAdapter
from torsh_runtime.parallel.fsdp.flat import FlatParameter
from torsh_runtime.parallel.fsdp.memory import Memory


class Unit:
    """While it is whole its parameters have their shapes, and no gradients but those that a
    backward pass is adding up. Else they are this rank's elements of them, in one dimension, and so
    are their gradients: what an optimizer takes."""

    def __init__(
        self,
        name: str,
        module: Any,
        adapter: ModuleAdapter[Any],
        laid: list[tuple[FlatParameter, Memory]],
        is_replicated: bool,
    ) -> None:
        """is_replicated: every rank has it whole."""
        self.name, self.module, self.laid, self.is_replicated = name, module, laid, is_replicated
        self._adapter = adapter
        self.is_whole = self._is_here = False
        self.is_frozen_in_part = not all(flat.is_trained for flat, _ in laid)
        self._slots = [
            _Slot(adapter, flat, memory, number, is_replicated)
            for flat, memory in laid
            for number in range(len(flat.parameters))
        ]
        self._trained = [slot for slot in self._slots if slot.is_trained]
        self._came: set[int] = set()
        self._reduced: list[_Slot] = []
        for slot in self._slots:
            slot.fill()
            slot.be_own()
        for _, memory in laid:
            memory.reshard()

    def gradients(self) -> list[Any]:
        """Those that its parameters have now."""
        given = [self._adapter.gradient(slot.parameter) for slot in self._trained]
        return [gradient for gradient in given if gradient is not None]

    def on_gradients(self, call: Callable[[int], None]) -> None:
        """Call it with the number of each parameter whose gradient has come."""
        for number, slot in enumerate(self._trained):
            self._adapter.on_gradient(slot.parameter, partial(call, number))

    def prepare(self) -> None:
        """Gradients may come: have memory for them."""
        self._came.clear()
        for flat, memory in self.laid:
            if flat.is_trained:
                memory.prepare()

    def begin_unshard(self) -> None:
        """Begin to make it whole."""
        if not self._is_here:
            for _, memory in self.laid:
                memory.begin_unshard()

    def unshard(self) -> None:
        """Make it whole."""
        if self.is_whole:
            return
        if not self._is_here:
            for _, memory in self.laid:
                memory.unshard()
        for slot in self._slots:
            slot.be_whole()
        self.is_whole = self._is_here = True

    def show_own(self) -> None:
        """Let its parameters be this rank's, as optimizers and zero_grad() know them, and keep what
        is not this rank's for later."""
        if self.is_whole:
            for slot in self._slots:
                slot.be_own()
        self.is_whole = False

    def reshard(self) -> None:
        """Let go of what is not this rank's."""
        self.show_own()
        if self._is_here:
            for _, memory in self.laid:
                memory.reshard()
        self._is_here = False

    def take(self, number: int, averages: bool) -> bool:
        """A gradient has come; whether it was the last one of the unit."""
        slot = self._trained[number]
        if not averages:
            slot.keep()
            return False
        slot.take()
        self._came.add(number)
        return len(self._came) == len(self._trained)

    def finish(self) -> bool:
        """Begin to reduce what has come; whether anything has."""
        came = [self._trained[number] for number in sorted(self._came)]
        self._came.clear()
        for _, memory in self.laid:
            here = [slot for slot in came if slot.memory is memory]
            if here:
                known = {slot.number for slot in here}
                missing = [
                    slot.number
                    for slot in self._trained
                    if slot.memory is memory and slot.number not in known
                ]
                memory.finish(missing, any(slot.adds for slot in here))
        self._reduced += came
        return bool(came)

    def wait(self) -> None:
        """Wait for reduced gradients, and let parameters have them."""
        for _, memory in self.laid:
            memory.wait()
        for slot in self._reduced:
            slot.give(is_shown=not self.is_whole)
        self._reduced.clear()

    def average(self, replicas: ProcessGroup) -> None:
        """Average this rank's gradients over ranks that have the same part."""
        for _, memory in self.laid:
            if memory.gradients is not None:
                replicas.all_reduce(self._adapter.values(memory.gradients), ReduceOp.AVG)

    def summon(self) -> None:
        """Give the parameters whole values of their own."""
        for _, memory in self.laid:
            memory.unshard()
        for slot in self._slots:
            slot.be_whole()
            slot.be_copied()
        for _, memory in self.laid:
            memory.reshard()

    def dismiss(self, writeback: bool) -> None:
        """Take them away; with writeback this rank's part is kept."""
        for slot in self._slots:
            if writeback:
                slot.fill()
            slot.be_own()


class _Slot:
    """One parameter in its unit."""

    def __init__(
        self,
        adapter: ModuleAdapter[Any],
        flat: FlatParameter,
        memory: Memory,
        number: int,
        keeps_shape: bool,
    ) -> None:
        self._adapter, self._flat, self.memory, self.number = adapter, flat, memory, number
        self.parameter = flat.parameters[number]
        self.is_trained = flat.is_trained
        self._keeps_shape = keeps_shape
        self._view = adapter.shaped(memory.whole, flat.starts[number], flat.shapes[number])
        first, last = flat.span(number)
        self._own = self._view if keeps_shape else adapter.slice(memory.shard, first, last)
        self._gradient: Any = None
        self._kept: Any = None
        self.adds = False

    def fill(self) -> None:
        """Put this rank's part of its values into memory."""
        values = self._adapter.flattened(self.parameter)
        first, last = self._flat.share(self.number)
        own = self._adapter.flattened(self._own)
        self._adapter.copy(own, self._adapter.slice(values, first, last))

    def be_whole(self) -> None:
        self._gradient = self._adapter.gradient(self.parameter)
        self._adapter.set_gradient(self.parameter, None)
        self._adapter.set_values(self.parameter, self._view)

    def be_own(self) -> None:
        self._adapter.set_gradient(self.parameter, None)
        self._adapter.set_values(self.parameter, self._own)
        self._adapter.set_gradient(self.parameter, self._gradient)

    def keep(self) -> None:
        """Keep this rank's whole gradient until one is to be averaged."""
        gradient = self._adapter.gradient(self.parameter)
        self._adapter.set_gradient(self.parameter, None)
        if self._kept is None:
            self._kept = gradient
        else:
            self._adapter.add(self._kept, gradient)

    def take(self) -> None:
        """Give the gradient to be averaged."""
        self.keep()
        gradient, self._kept = self._kept, None
        self.adds = self._gradient is not None
        if self.adds and not self._adapter.is_at(self._gradient, self._average()):
            self._adapter.copy(self._average(), self._gradient)
        self.memory.take(self.number, gradient, self.adds)
        if not self.adds:
            self._gradient = self._average()

    def give(self, is_shown: bool) -> None:
        """Its gradient has been averaged."""
        self._gradient = self._average()
        if is_shown:
            self._adapter.set_gradient(self.parameter, self._gradient)

    def be_copied(self) -> None:
        self._adapter.set_values(self.parameter, self._adapter.clone(self._view))

    def _average(self) -> Any:
        if self._keeps_shape:
            start, shape = self._flat.starts[self.number], self._flat.shapes[self.number]
            return self._adapter.shaped(self.memory.gradients, start, shape)
        return self._adapter.slice(self.memory.gradients, *self._flat.span(self.number))
