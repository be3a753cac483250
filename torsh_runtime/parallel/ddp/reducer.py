"""Averages gradients over ranks while backward passes produce them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.agreement import texts_of_all
from torsh_runtime.errors import ConfigError, GradientError
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.models import (
    communicates_in_backward,
    constant_parameters,
    differentiable,
    on_gradient,
    trained_parameters,
)
from torsh_runtime.monitoring.marks import Span, own_marks, section
from torsh_runtime.parallel.added import Added
from torsh_runtime.parallel.ddp.bucket import Bucket, Hook
from torsh_runtime.parallel.ddp.buckets import Buckets
from torsh_runtime.parallel.ddp.config import BucketConfig
from torsh_runtime.parallel.ddp.problems import check_broken_off, joined, why_late
from torsh_runtime.parallel.replicas import Replicas


class _Pass:
    """A backward pass under way."""

    def __init__(self, averages: bool) -> None:
        self.averages = averages
        self.span: Span | None = None
        self.is_anchored = False  # its end is known from where it began
        self.is_queued = False  # the end of the innermost pass is awaited
        self.came: Counter[int] = Counter()  # in order of the last gradient of each
        self.placed: set[int] = set()
        self.next = 0  # the bucket that is to be averaged next
        self.pending: list[tuple[Bucket, Any]] = []
        self.problems: list[str] = []
        self.is_past = False  # the model computed with other parameters than it was wrapped with

    def end_span(self) -> None:
        """End the span, which profilers see."""
        if self.span is not None:
            self.span.end()


class Reducer:
    """The gradients of one model. Buckets are averaged in one order on all ranks, whatever the
    order in which gradients come.

    When a backward pass has ended the ranks tell each other whether all went well: what is amiss on
    one of them, GradientError says on all.
    """

    def __init__(
        self,
        model: Module,
        replicas: Replicas,
        config: BucketConfig,
        agree: Callable[[Hook | None], None] | None = None,
    ) -> None:
        """agree: called by all ranks, with the hook, before gradients are averaged for the first
        time."""
        self._agree = self._first_agreement = agree
        self._model = model
        self._framework = framework_of(model)
        self._group = replicas.group
        self._config = config
        self._parameters = trained_parameters(model)
        self._buckets = Buckets(model, replicas, config)
        self._hook: tuple[Any, Hook] | None = None
        self._pass: _Pass | None = None
        self._passes = 0  # since gradients were averaged
        self._broken_off = 0  # passes, since then
        self._used: dict[int, None] = {}  # since then, by the time of their last gradient
        self._unreached: set[int] | None = None  # by the outputs since then
        self._usual: Counter[int] | None = None  # what comes in each pass of a static graph
        self._waits = config.find_unused_parameters and communicates_in_backward(model)
        self._is_first = True
        self._is_enabled = True  # by the passes that begin now
        self.divisor: int | None = None
        """What sums are divided by; None: the number of ranks."""
        self._constants = constant_parameters(model)
        self._added = Added(model)
        here = weakref.ref(self)
        removes = [
            on_gradient(parameter, partial(_tell, here, number))
            for number, (_, parameter) in enumerate(self._parameters)
        ]
        weakref.finalize(self, _call_all, removes).atexit = False

    def register_hook(self, state: Any, hook: Hook) -> None:
        """Average by it from now on. Raises ConfigError if one is there already."""
        if self._hook is not None:
            raise ConfigError(
                f"gradients are averaged by a hook already, {self._hook[1]!r}: register one, or "
                f"set gradient_compression, not both"
            )
        self._hook = (state, hook)

    def begin_anew(self) -> None:
        """Begin as if no gradients had been averaged yet, on all ranks of a group that has been
        configured anew; also amid a backward pass that was broken off."""
        self.expect(True)
        self._passes = self._broken_off = 0
        self._used, self._unreached, self._usual = {}, None, None
        self._is_first, self._agree = True, self._first_agreement
        self._buckets.begin_anew()

    def expect(self, averages: bool) -> None:
        """Prepare for a backward pass whose gradients are averaged if `averages`, and drop one
        that was broken off."""
        self._is_enabled = averages
        broken_off, self._pass = self._pass, None
        if broken_off is not None:
            self._passes -= 1
            self._broken_off += 1
            _leave(broken_off)

    def follow(self, outputs: object) -> None:
        """Treat a backward pass that begins at one of the tensors in `outputs` as this model's."""
        tensors = differentiable(self._framework, outputs)
        self._framework.on_backward(tensors, self._on_outputs)
        if self._config.find_unused_parameters and self._config.overlap_communication is not False:
            reached = self._framework.reached(tensors)
            numbers = range(len(self._parameters)) if reached else ()  # else of unknown kinds
            missed = {i for i in numbers if id(self._parameters[i][1]) not in reached}
            self._unreached = missed if self._unreached is None else self._unreached & missed

    @property
    def has_hook(self) -> bool:
        """Return whether gradients are averaged by a registered hook."""
        return self._hook is not None

    def is_next_averaged(self) -> bool:
        """Return whether the next backward pass is the last one before gradients are averaged."""
        return self._passes + 1 >= self._config.passes

    def shadow(self) -> None:
        """Take part in one averaging with zeros, which change nothing here."""
        self._open()
        absent = _Pass(True)
        self._place_all(absent, range(len(self._parameters)), self._buckets.put_zeros)
        self._complete(absent, {})

    def average(self) -> None:
        """Average what backward passes have added up, outside of one."""
        self.expect(True)
        ended = self._pass = _Pass(True)
        self._open()
        numbers = [i for i, (_, each) in enumerate(self._parameters) if each.grad is not None]
        self._used = dict.fromkeys(numbers)
        ended.came.update(numbers)
        self._end(ended)
        self._is_enabled = False  # another stage of this rank may go back through a tied weight yet

    def _on_outputs(self) -> None:
        under_way = self._begun()
        if not under_way.is_anchored:
            under_way.is_anchored = True
            self._framework.at_end_of_backward(partial(self._end, under_way))

    def _on_gradient(self, number: int) -> None:
        under_way = self._begun()
        if not (under_way.is_anchored or under_way.is_queued):
            under_way.is_queued = True
            self._framework.at_end_of_backward(partial(self._end_unless_nested, under_way))
        under_way.came[number] = under_way.came.pop(number, 0) + 1
        if under_way.averages and not self._is_kept_for_the_end():
            self._come(under_way, number)

    def _begun(self) -> _Pass:
        if self._pass is None:
            self._passes += 1
            self._pass = _Pass(self._is_enabled and self._passes >= self._config.passes)
            self._pass.span = Span("ddp.backward")
            if self._pass.averages:
                self._open()
                if not self._is_kept_for_the_end():
                    self._place_all(self._pass, sorted(self._unreached or ()))
        return self._pass

    def _open(self) -> None:
        if self._agree is not None:
            self._agree(None if self._hook is None else self._hook[1])
            self._agree = None
        self._buckets.open()

    def _is_kept_for_the_end(self) -> bool:
        """Return whether gradients wait for the end of the pass: it is not known yet when one is
        complete, or when the model's own collectives are due, whose order must be the same on
        all ranks."""
        is_unknown = self._config.static_graph and self._usual is None
        return is_unknown or self._waits or self._config.backward_passes_per_step > 1

    def _come(self, under_way: _Pass, number: int) -> None:
        usual = 1 if self._usual is None else self._usual[number]
        if number in under_way.placed:
            under_way.problems.append(f"{self._name(number)} {why_late(under_way.came[number])}")
        elif under_way.came[number] == usual:
            self._place_all(under_way, [number])

    def _place_all(
        self, under_way: _Pass, numbers: Iterable[int], put: Callable[[int], str] | None = None
    ) -> None:
        for number in numbers:
            if number in under_way.placed:
                continue
            under_way.placed.add(number)
            problem = (put or self._buckets.put)(number)
            if problem:
                under_way.problems.append(f"{self._name(number)} {problem}")
        for bucket in self._buckets.complete(under_way.next):
            under_way.next += 1
            under_way.pending.append((bucket, self._average(bucket)))

    def _average(self, bucket: Bucket) -> Any:
        if self._hook is not None and bucket.group is self._group:
            state, hook = self._hook
            with self._framework.following(bucket.flat):
                return hook(state, bucket)
        overlaps = self._config.overlap_communication
        if overlaps is None:
            overlaps = not bucket.group.all_come(bucket.flat)
        return bucket.group.all_reduce(bucket.flat, ReduceOp.AVG, async_op=overlaps)

    def _end_unless_nested(self, ended: _Pass) -> None:
        ended.is_queued = False
        if not ended.is_anchored and not self._framework.is_nested():
            self._end(ended)

    def _end(self, ended: _Pass) -> None:
        if self._pass is not ended:
            return
        self._pass = None
        try:
            self._finish(ended)
        finally:
            ended.end_span()

    def _finish(self, ended: _Pass) -> None:
        for number in ended.came:
            self._used.pop(number, None)
            self._used[number] = None
        if not ended.averages:
            return
        used, self._used, self._passes, self._unreached = self._used, {}, 0, None
        unused = [i for i in range(len(self._parameters)) if i not in used]
        self._place_all(ended, [*used, *unused])
        self._judge(ended, used, unused)
        used_somewhere = self._complete(ended, used)
        if used_somewhere is None:
            self._used, self._passes = used, self._config.passes - 1
        else:
            self._buckets.give_back(used_somewhere)
            own_marks().step_by(self)

    def _complete(self, ended: _Pass, used: dict[int, None]) -> set[int] | None:
        """Wait until all is averaged. The parameters that some rank has used; None if the pass
        accumulated no gradients on any rank, such as that of torch's autograd.grad()."""
        try:
            used_somewhere = self._exchange(ended, used)
        except GradientError:
            _leave(ended)
            raise
        with section("ddp.wait"):
            for bucket, pending in ended.pending:
                self._take(bucket, pending.wait())
        if self._is_first and used_somewhere is not None:
            self._is_first = False
            self._usual = ended.came if self._config.static_graph else None
            self._learn([*used, *(i for i in range(len(self._parameters)) if i not in used)])
        return used_somewhere

    def _judge(self, ended: _Pass, used: dict[int, None], unused: Sequence[int]) -> None:
        """Note what parameters should have got gradients."""
        for name in [name for name, constant in self._constants if constant.requires_grad]:
            ended.problems.append(
                f"parameter {name!r} wants gradients, and did not when the model was wrapped: wrap "
                f"it anew"
            )
        if unused and (replaced := self._replaced()):
            ended.is_past = True
            ended.problems.append(
                f"{self._names(replaced)} gave way to other tensors when the model had been "
                f"wrapped, such as by load_state_dict(assign=True): wrap it anew"
            )
        elif added := self._added.problem():
            ended.problems.append(added)
        if ended.is_past or self._config.find_unused_parameters:
            return
        if self._config.static_graph:
            if self._usual is None or ended.came == self._usual:
                return
            changed = [i for i in range(len(self._parameters)) if ended.came[i] != self._usual[i]]
            text = "got gradients otherwise than in the first pass, and static_graph=True was said"
            ended.problems.append(f"{self._names(changed)} {text}")
        elif unused:
            ended.problems.append(
                f"{self._names(unused)} got no gradient: set find_unused_parameters=True if the "
                f"loss does not depend on it in every pass, or requires_grad=False if in none"
            )

    def _replaced(self) -> list[int]:
        """Return the numbers of the parameters that no longer belong to the model."""
        present = {id(parameter) for _, parameter in trained_parameters(self._model)}
        present |= {id(parameter) for _, parameter in constant_parameters(self._model)}
        return [i for i, (_, each) in enumerate(self._parameters) if id(each) not in present]

    def _exchange(self, ended: _Pass, used: dict[int, None]) -> set[int] | None:
        """Exchange used parameters and problems with all ranks. Return what _complete() does.
        Raises GradientError if a rank has a problem."""
        finds_unused = self._config.find_unused_parameters or self._config.static_graph
        own = np.zeros(2 + len(self._parameters) * finds_unused, np.uint8)
        own[:2] = bool(ended.problems), bool(ended.came) or ended.is_past
        if finds_unused:
            own[[2 + number for number in used]] = 1
        bits = np.packbits(own)
        padded = np.zeros(8 - (-bits.size // 8) * 8, np.uint8)
        padded[0], self._broken_off = min(self._broken_off, 255), 0
        padded[8:][: bits.size] = bits
        rows = self._group.all_gather_numbers(padded.view(np.int64)).view(np.uint8)
        check_broken_off(rows[:, 0])
        everyone = np.unpackbits(np.bitwise_or.reduce(rows[:, 8:], axis=0))[: own.size]
        if not everyone[1]:
            return None
        if everyone[0]:
            texts = texts_of_all(self._group, joined(ended.problems, "; "))
            raise GradientError({rank: text for rank, text in enumerate(texts) if text})
        return {*np.flatnonzero(everyone[2:]).tolist()} if finds_unused else {*used}

    def _take(self, bucket: Bucket, result: Any) -> None:
        if isinstance(result, list | tuple):
            result = result[0]
        if result is not None and not isinstance(result, bool):
            bucket.set_buffer(result)
        if self.divisor is not None:
            bucket.flat *= self._group.world_size / self.divisor

    def _learn(self, order: Sequence[int]) -> None:
        """Fill buckets in rank 0's order from the next pass on."""
        firsts = self._group.all_gather_numbers(np.array(order, np.int64))[0]
        self._buckets.rearrange(firsts.tolist())

    def _name(self, number: int) -> str:
        return f"parameter {self._parameters[number][0]!r}"

    def _names(self, numbers: Sequence[int]) -> str:
        names = joined([repr(self._parameters[number][0]) for number in numbers], ", ")
        return f"parameter{'s' if len(numbers) > 1 else ''} {names}"


def _tell(here: weakref.ref[Reducer], number: int) -> None:
    reducer = here()
    if reducer is not None:
        reducer._on_gradient(number)


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _leave(ended: _Pass) -> None:
    """Wait until nobody writes to its buckets any more."""
    ended.end_span()
    for _, pending in ended.pending:
        with suppress(Exception):  # the pass has failed already
            pending.wait()
