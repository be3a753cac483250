"""Follows the forward and backward passes of a model, and unshards its units for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torsh_runtime.comm.agreement import agree
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import CommMismatch, ConfigError
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.models import differentiable, on_forward
from torsh_runtime.monitoring.marks import Span, own_marks
from torsh_runtime.parallel.added import Added
from torsh_runtime.parallel.fsdp.awaiting import AwaitedValues
from torsh_runtime.parallel.fsdp.config import FsdpConfig
from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup
from torsh_runtime.parallel.fsdp.node_storage import Nodes, host_storage
from torsh_runtime.parallel.fsdp.owners import owners_of
from torsh_runtime.parallel.fsdp.prefetching import Prefetching
from torsh_runtime.parallel.fsdp.record import OTHER_CALL, check_hooks, check_outputs, used_by_any
from torsh_runtime.parallel.fsdp.reduction import Reduction
from torsh_runtime.parallel.fsdp.training_state import TrainingState
from torsh_runtime.parallel.fsdp.wrapping import is_within
from torsh_runtime.parallel.replicas import Replicas


def weakly(passes: FSDPState, method: Callable[[FSDPState, Any], None]) -> Callable[[Any], None]:
    """Return a function that calls a method of the outermost state, without keeping it alive."""
    here = weakref.ref(passes)

    def call(given: Any) -> None:
        if (found := here()) is not None:
            method(found.outermost(), given)

    return call


class FSDPState:
    """Follows the passes of one model, all of whose ranks call the same units in the same order."""

    def __init__(
        self,
        model: Module,
        group: ProcessGroup,
        config: FsdpConfig,
        units: Sequence[FSDPParamGroup],
        replicas: Replicas | None = None,
    ) -> None:
        """Create the state. replicas: the ranks that have the same part."""
        self._framework, self._group, self._config = framework_of(model), group, config
        self.units = [*units]
        self._reduction = Reduction(self.units, group, replicas, config.check_nan)
        self.is_averaging = True
        self.training_state = TrainingState.FORWARD_BACKWARD
        self._outer: FSDPState | None = None
        self._inner: list[FSDPState] = []
        self._prefetching = Prefetching(config)
        self._is_ending = False
        self._span: Span | None = None
        self._beginner: FSDPParamGroup | None = None
        """The unit whose call is the present forward pass."""
        self._is_in_method = False
        self._watched = self._framework.watched(weakly(self, FSDPState.lend))
        self._added = Added(model)
        self.awaiting = AwaitedValues()
        for unit in units:
            self._hook(unit)

    def adopt(self, inner: FSDPState) -> None:
        """Take over the units of a state whose model is within this one's."""
        self._inner.append(inner)
        inner._outer = self
        self.units += inner.units
        self.awaiting.absorb(inner.awaiting)
        inner.awaiting = self.awaiting

    def outermost(self) -> FSDPState:
        """Return the passes of the largest model that this one's is in."""
        return self if self._outer is None else self._outer.outermost()

    @property
    def is_in_pass(self) -> bool:
        """Return whether a forward or backward pass is going on."""
        return self._beginner is not None or self._framework.in_backward()

    def own(self, parameters: Sequence[Any]) -> None:
        """Let single ranks own these parameters as a whole from now on. All ranks call it between
        passes.

        Raises ConfigError while parameters are whole.
        """
        is_between = self.training_state is TrainingState.FORWARD_BACKWARD
        if not is_between or self._framework.in_backward():
            raise ConfigError(
                "an optimizer needs whole parameters, and they cannot be moved while the model is "
                "unsharded: let it step for the first time neither in a backward pass, nor within "
                "unshard() or summon_full_params()"
            )
        names = {id(each): name for unit in self.units for name, each in unit.named()}
        wanted = [names[id(each)] for each in parameters]
        agree(self._group, "the optimizer's step", {"parameters": wanted})
        self.rest()
        self.meet()
        owners = owners_of(self.units, {id(each) for each in parameters})
        for unit in self.units:
            if not unit.is_replicated:
                unit.own(owners)
        self.meet()

    def is_outermost_summoned(self) -> bool:
        """Return whether the whole model's parameters are whole copies now."""
        return self.outermost().training_state is TrainingState.SUMMON_FULL_PARAMS

    def _hook(self, unit: FSDPParamGroup) -> None:
        """Follow the unit, without keeping it or this alive."""
        here, of_unit = weakref.ref(self), weakref.ref(unit)

        def pass_on(event: Callable[..., None], *facts: Any) -> None:
            passes, own = here(), of_unit()
            passes = None if passes is None else passes.outermost()
            if passes is None or own is None or passes.training_state is TrainingState.HELD:
                return
            event(passes, own, *facts)

        on_forward(
            self._framework,
            unit.module,
            partial(pass_on, FSDPState._before_forward),
            partial(pass_on, FSDPState._after_forward),
        )
        broke_off = partial(pass_on, FSDPState._on_broken_forward)
        self._framework.on_broken_forward(unit.module, broke_off)
        unit.on_gradients(partial(pass_on, FSDPState._on_gradient))

    def hold(self, shows_gradients: bool = False) -> None:
        """Make all units whole until let_go(): meanwhile passes neither gather nor reduce.
        shows_gradients: a program may drop those that there are before passes bring others."""
        if self.training_state is TrainingState.HELD:
            return
        if not self._framework.in_backward():
            self.begin()
        for unit in self.units:
            unit.unshard(shows_gradients)
        self.training_state = TrainingState.HELD

    def let_go(self) -> None:
        """Reshard all units, and keep the gradients that have come for reduce()."""
        if self.training_state is not TrainingState.HELD:
            return
        self.training_state = TrainingState.FORWARD_BACKWARD
        for unit in self.units:
            unit.keep()
            unit.reshard()
        self.meet()

    def reduce(self) -> None:
        """Average the gradients that are kept, or have come while units are held; within no_sync()
        keep them."""
        if not self._is_any_averaging():
            self.let_go()
            return
        if self.training_state is not TrainingState.HELD and not any(u.kept() for u in self.units):
            return
        self.hold()
        self.training_state = TrainingState.FORWARD_BACKWARD
        with self._reduction.in_step():
            for unit in self.units[::-1]:
                for number in unit.there():
                    self._take(unit, number)
            self._complete()

    def begin(self) -> None:
        """Begin a forward pass: owners have changed their parts, and all ranks may now read
        them."""
        if self.is_outermost_summoned():
            raise ConfigError(
                "the model was called inside summon_full_params: leave the block first"
            )
        self._added.check()
        self.awaiting.end()
        self.rest()
        try:
            self._publish()
        except CommMismatch as error:
            error.add_note(OTHER_CALL)
            raise

    def _publish(self) -> None:
        """Let all ranks read this rank's parts, and prepare for gradients."""
        for unit in self.units:
            unit.publish()
            if self._framework.is_grad_enabled():
                unit.train_more()
                unit.prepare()
        self._prefetching.begin()
        self.meet()

    @contextmanager
    def within_method(self, root: FSDPParamGroup) -> Iterator[Callable[[Any], None]]:
        """Let a method of the module of unit `root` compute as its forward() does in this block.
        The results of the method are given to the function that this yields."""
        is_held = self.training_state is TrainingState.HELD
        if is_held or self._is_in_method or self._framework.in_backward():
            yield lambda _: None
            return
        is_part = not self._begins(root)
        self._before_forward(root)
        if is_part:  # of a pass that has begun
            yield partial(self._after_forward, root)
            return
        self._is_in_method = True
        try:
            yield partial(self._end_method, root)
        finally:
            self._is_in_method = False

    def _end_method(self, root: FSDPParamGroup, outputs: Any) -> None:
        self._is_in_method = False
        self._after_forward(root, outputs)
        if not differentiable(self._framework, outputs):
            self.meet()  # as no backward pass does

    def lend(self, parameter: Any) -> None:
        """Make the unit of a parameter whole, which is used without a call of its module."""
        for unit in self.units:
            if any(parameter is each for each in unit.parameters):
                unit.is_lent = True
                unit.unshard()
                return

    @property
    def group(self) -> ProcessGroup:
        """Return the ranks that the model is sharded over."""
        return self._group

    def begin_anew(self, nodes: Nodes | None) -> bool:
        """Drop passes that were broken off, on all ranks of a group that has been connected anew,
        and share memory with those of this node. nodes: those of the group.

        Return whether this rank has other parts now, whose values the caller has to give."""
        self._void()
        self.training_state = TrainingState.FORWARD_BACKWARD
        self._beginner, self._is_in_method = None, False
        self._prefetching = Prefetching(self._config)
        store = partial(host_storage, over=self._group, nodes=nodes)
        moved = [unit.begin_anew(store) for unit in self.units]
        return any(moved)

    def rest(self) -> None:
        """Reshard all units, and end what an exception has left behind."""
        if self._is_ending:
            self._void()
        self._beginner = None
        for unit in self.units:
            unit.unwatch()
            unit.reshard()

    def drop(self) -> None:
        """Drop a pass that an exception has broken off, and gradients to be averaged later."""
        self._void()
        self.rest()

    def _void(self) -> None:
        """Discard what came in a backward pass that was broken off."""
        self._is_ending = False
        self._end_span()
        self._reduction.void()
        for unit in self.units:
            unit.void()

    def meet(self) -> None:
        """Wait for all ranks if they have memory in common."""
        if self._group.world_size > 1 and any(unit.is_common for unit in self.units):
            self._group.barrier()
        for unit in self.units:
            unit.met()

    def _before_forward(self, unit: FSDPParamGroup) -> None:
        is_again = self._framework.in_backward()  # a checkpoint computes it once more
        if not is_again and self._begins(unit):
            self.begin()
            for each in self.units if self._framework.is_grad_enabled() else ():
                check_hooks(each)
            self._beginner = unit
            for each in self.units:
                each.watch(self._watched)
        unit.unshard()
        if not is_again:
            self._prefetching.in_forward(unit)

    def _begins(self, unit: FSDPParamGroup) -> bool:
        """Return whether a call of the unit is a forward pass of its own. A pass that an
        exception has broken off is over when a unit is called that is not within the one that
        began it."""
        begun = self._beginner
        if self._is_in_method or begun is None:
            return not self._is_in_method
        return unit is begun or not is_within(unit.name, begun.name)

    def _after_forward(self, unit: FSDPParamGroup, outputs: Any) -> None:
        is_again = self._framework.in_backward()
        if self._framework.is_grad_enabled():
            check_outputs(unit, outputs)
            tensors = differentiable(self._framework, outputs)
            self._framework.on_backward(tensors, partial(self._before_backward, unit))
        if is_again:
            return
        if unit is self._beginner and not self._is_in_method:
            self._end_forward(unit)
        elif not (unit.is_lent or unit is self._beginner):
            unit.reshard_after_forward()
            unit.watch(self._watched)

    def _on_broken_forward(self, unit: FSDPParamGroup) -> None:
        """Show parts and gradients, which a program may remove before it goes on."""
        if unit is self._beginner:
            self._beginner = None
            for each in self.units:
                each.unwatch()
                each.show_own()

    def _end_forward(self, unit: FSDPParamGroup) -> None:
        """End a forward pass. Reshard all units if no backward pass follows, without gradients."""
        self._on_broken_forward(unit)  # as after one that goes no further
        if not unit.is_lent:
            unit.reshard_after_forward()
        if not (self._framework.in_backward() or self._framework.is_grad_enabled()):
            for each in self.units:
                each.reshard()
            self.meet()

    def _before_backward(self, unit: FSDPParamGroup) -> None:
        self._expect_end()
        with self._reduction.in_step():
            for each in self.units:
                if each is unit or each.is_lent:
                    each.unshard()
            self._prefetching.before_backward(unit)

    def _expect_end(self) -> None:
        """Arrange that the present backward pass is completed when it ends."""
        if not self._is_ending:
            self._is_ending = True
            self._span = Span("fsdp.backward")
            self._framework.at_end_of_backward(self._end)

    def _on_gradient(self, unit: FSDPParamGroup, number: int) -> None:
        self._expect_end()  # where outputs were in what is not looked into
        with self._reduction.in_step():
            self._take(unit, number)

    def _is_any_averaging(self) -> bool:
        return self.is_averaging and any(unit.options.is_averaging for unit in self.units)

    def _take(self, unit: FSDPParamGroup, number: int, is_late: bool = False) -> None:
        """Take a gradient; is_late: the pass has ended."""
        how = unit.options
        averages = self.is_averaging and how.is_averaging and (is_late or not how.finds_unused)
        is_last = unit.take(number, averages)
        if not averages:
            return
        if unit.reduces_each:
            self._reduction.note(unit, number)
        if not is_last:
            return
        is_freed = unit.is_freed_early
        if is_freed:
            unit.show_own()
        self._reduction.begin(unit, is_freed)
        if is_freed:
            unit.reshard_early()
        self._prefetching.after_backward(unit)

    def _end(self) -> None:
        self._is_ending = False
        if self._framework.is_nested():
            return
        try:
            with self._reduction.in_step():
                self._complete()
        finally:
            self._end_span()

    def _end_span(self) -> None:
        if self._span is not None:
            self._span.end()
        self._span = None

    def _take_late(self) -> None:
        """Take what was left for the end of the pass, in one order on all ranks."""
        options = ((each, each.options) for each in self.units)
        late = [each for each, how in options if how.finds_unused and how.is_averaging]
        used = used_by_any(late, self._reduction.alike) if late else []
        for unit, numbers in zip(late, used, strict=True):
            for number in numbers:
                unit.keep_zeros(number)
                self._take(unit, number, is_late=True)

    def _complete(self) -> None:
        if self.is_averaging:
            self._take_late()
        self._reduction.end()
        for unit in self.units:
            unit.reshard()
        if not self._is_any_averaging():
            self._reduction.void()
            self.meet()
            return
        self._reduction.settle()
        own_marks().step_by(self)
