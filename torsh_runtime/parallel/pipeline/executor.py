"""Runs a rank's row of a table."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import PipelineError
from torsh_runtime.monitoring.marks import own_marks, section
from torsh_runtime.parallel.pipeline.simulation import Span
from torsh_runtime.parallel.pipeline.stage import HOLDS, LETS_GO, REDUCES, Stage
from torsh_runtime.parallel.pipeline.table import Kind, Step, Table
from torsh_runtime.parallel.pipeline.wire import Message, Wire
from torsh_runtime.status import own_page


@dataclass(frozen=True)
class Work:
    """Holds the data of a step of training or evaluation. The lists have a member for each
    microbatch.
    """

    batch: Sequence[tuple[Any, ...]]
    """Inputs of the first stage."""
    calls: Sequence[Any]
    """Calls of the whole model, for stages that need them beside their inputs; else empty."""
    targets: Sequence[Any]
    """Targets for the last stage's loss_fn; empty without one."""
    has_losses: bool
    """True if the last stage returns losses instead of outputs."""
    weights: Sequence[float]
    """Weights of the microbatches' losses."""
    trains: bool


class Executor:
    """Executes the steps of all stages of one rank. Each step is taken when its inputs have come.
    Messages that shared memory does not hold until then are received `ahead` of the steps that need
    them, and sends never block.
    """

    def __init__(
        self,
        group: ProcessGroup,
        stages: Mapping[int, Stage],
        placement: Sequence[int],
        wire: Wire,
    ) -> None:
        self._group, self._stages, self._last = group, stages, len(placement) - 1
        self._placement, self._wire, self._page = placement, wire, own_page()
        self._waits = ""
        """Description of what it waits for, while it waits for another rank."""
        self._here: dict[Message, Sequence[Any]] = {}
        self.present: Step | None = None
        """The step that is being taken."""
        self.spans: list[Span] = []
        """Beginnings and ends of the last run's steps, in seconds since it began."""
        self.outputs: dict[int, Any] = {}
        """Losses or outputs of the last stage, by microbatch."""

    def run(self, table: Table, work: Work, key: object, ahead: int) -> None:
        """Take all of this rank's steps.

        `key` stands for the batch's shapes. `ahead`: the largest number of messages that are
        received before they are needed. Raises PipelineError if a step fails, here or on another
        rank: then the group is dead.
        """
        self._work, self.spans, self.outputs = work, [], {}
        self._wire.begin(key, table)
        row = table.rows[self._group.rank]
        for number, stage in self._stages.items():
            back = [s.microbatch for s in row if s.stage == number and s.kind is Kind.BACKWARD]
            if work.trains:
                stage.begin(back[-1] if back else None)
        try:
            self._take_all(row, ahead)
            with section("pipeline.wait"):
                self._wire.end(self._wait_to_send)
        except BaseException as error:  # Ctrl-C, too, which Failures passes on as it is
            raise self._failed(self.present or row[0], error) from error
        self._wait_no_more("")
        if work.trains:
            own_marks().step_by(self)

    def _take_all(self, row: Sequence[Step], ahead: int) -> None:
        messages = [self._awaited(step) for step in row]
        awaited = [message for message in messages if message is not None]
        begun, taken = time.perf_counter(), 0
        for step, message in zip(row, messages, strict=True):
            for expected in awaited[taken : taken + ahead]:
                self._wire.expect(expected)
            taken += message is not None
            self.present = step
            self._wait_no_more(f"{_short(step)} of stage {step.stage}")
            start = self._take(step, begun)
            self.spans.append(Span(step, start, time.perf_counter() - begun))

    def forget(self) -> None:
        """Forget everything that was under way in a run that failed."""
        self.present = None
        self._wait_no_more("")
        self._here.clear()
        self._wire.forget()
        for stage in self._stages.values():
            stage.forget()

    def _take(self, step: Step, begun: float) -> float:
        """Take a step, and return when it began: when its inputs had come, in seconds since
        `begun`.
        """
        stage, kind, microbatch = self._stages[step.stage], step.kind, step.microbatch or 0
        if kind is Kind.FORWARD:
            inputs = self._inputs(step)
            start = time.perf_counter() - begun
            with section("pipeline.forward"):
                self._forward(stage, microbatch, inputs)
        elif kind in (Kind.BACKWARD, Kind.INPUT):
            gradients = self._gradients(step)
            start = time.perf_counter() - begun
            back = stage.backward if kind is Kind.BACKWARD else stage.backward_inputs
            with section("pipeline.backward"):
                self._send_back(stage, microbatch, back(microbatch, gradients))
        else:
            start = time.perf_counter() - begun
            self._by_stage(stage, kind, microbatch)
        return start

    def _by_stage(self, stage: Stage, kind: Kind, microbatch: int) -> None:
        if kind is Kind.WEIGHT:
            with section("pipeline.weights"):
                stage.weights(microbatch)
            return
        names = {Kind.REDUCE: REDUCES, Kind.UNSHARD: HOLDS, Kind.RESHARD: LETS_GO}
        call: Callable[[], object] | None = getattr(stage.module, names[kind], None)
        if call is not None:
            call()

    def _inputs(self, step: Step) -> Sequence[Any]:
        message = self._awaited(step, everywhere=True)
        if message is None:
            return () if self._work.calls else self._work.batch[step.microbatch or 0]
        autograd = self._stages[step.stage].autograd
        here = self._here.pop(message, None)
        if here is not None:
            return [autograd.leaf(autograd.values(each), each.requires_grad) for each in here]
        values = self._receive(step, message)
        specs = self._wire.specs(message) or ()
        return [
            autograd.leaf(each, spec.wants_gradient and self._work.trains)
            for each, spec in zip(values, specs, strict=True)
        ]

    def _forward(self, stage: Stage, microbatch: int, inputs: Sequence[Any]) -> None:
        work, is_last = self._work, stage.number == self._last
        target = work.targets[microbatch] if is_last and work.targets else None
        call = work.calls[microbatch] if work.calls else None
        if work.trains and is_last:
            (loss,) = stage.forward(microbatch, inputs, target, work.weights[microbatch], call)
            # Without its graph, which would keep the inputs and their gradients.
            self.outputs[microbatch] = stage.autograd.leaf(stage.autograd.values(loss), False)
            return
        if work.trains:
            outputs = stage.forward(microbatch, inputs, target, 0.0, call)
        else:
            output = stage.evaluate(inputs, call)
            if is_last and work.has_losses:
                output = stage.loss(output, target)
            outputs = output if isinstance(output, tuple) and not is_last else (output,)
        if is_last:
            self.outputs[microbatch] = outputs[0] if work.has_losses else stage.kept(outputs[0])
            return
        message = Message(stage.number, stage.number + 1, microbatch)
        specs, lasting = stage.sent(outputs, inputs), map(stage.autograd.lasting, outputs)
        if stage.number + 1 in self._stages:
            leaf, wanted = stage.autograd.leaf, zip(lasting, specs, strict=True)
            self._here[message] = [leaf(values, spec.wants_gradient) for values, spec in wanted]
        else:
            self._wire.send(message, [*lasting], specs)

    def _gradients(self, step: Step) -> Sequence[Any]:
        message = self._awaited(step, everywhere=True)
        if message is None:
            return ()
        here = self._here.pop(message, None)
        return self._receive(step, message) if here is None else here

    def _receive(self, step: Step, message: Message) -> list[Any]:
        self._wait(f"waits for {_short(step)} of stage {message.sender}", message.sender)
        with section("pipeline.wait"):
            values = self._wire.receive(message)
        self._wait_no_more(f"{_short(step)} of stage {step.stage}")
        return values

    def _wait_to_send(self, message: Message) -> None:
        kind = Kind.FORWARD if message.sender < message.receiver else Kind.BACKWARD
        receiver = message.receiver
        needs = _short(Step(receiver, kind, message.microbatch))
        self._wait(f"waits for stage {receiver} to take what {needs} needs", receiver)

    def _wait(self, what: str, stage: int) -> None:
        """Note what this rank waits for, for torshrun and for errors."""
        peer = self._placement[stage]
        self._waits = f"{what}: {self._group.called(peer)}"
        if self._page is not None:
            self._page.note_doing(what, self._group.global_rank(peer))

    def _wait_no_more(self, doing: str) -> None:
        self._waits = ""
        if self._page is not None:
            self._page.note_doing(doing)

    def _send_back(self, stage: Stage, microbatch: int, gradients: Sequence[Any]) -> None:
        if not stage.number:
            return
        message = Message(stage.number, stage.number - 1, microbatch)
        if stage.number - 1 in self._stages:
            self._here[message] = gradients
        else:
            self._wire.send(message, gradients, ())

    def _awaited(self, step: Step, everywhere: bool = False) -> Message | None:
        """Return the message that a step needs; from another rank, unless `everywhere`."""
        kind = step.kind
        if kind is Kind.FORWARD:
            source = step.stage - 1
        elif kind is Kind.BACKWARD or kind is Kind.INPUT:
            source = step.stage + 1
        else:
            return None
        if not 0 <= source <= self._last or (source in self._stages and not everywhere):
            return None
        return Message(source, step.stage, step.microbatch or 0)

    def _failed(self, step: Step, error: BaseException) -> PipelineError:
        """Return the error that says where this rank was when it failed."""
        doing = " ".join(filter(None, (_short(step), self._waits)))
        rank = self._group.rank
        reason, place = f"{type(error).__name__}: {error}", self._group.called(rank)
        return PipelineError(rank, step.stage, step.microbatch, doing, reason, place)


def _short(step: Step) -> str:
    return f"{step.kind.value}{'' if step.microbatch is None else step.microbatch}"


def ahead_of(buffers: Mapping[Any, int], stages: Sequence[int]) -> int:
    """Return how many messages a rank with these stages may receive before it needs them.

    This is the number that wait for it at once in the simulation, and at least two, so that one can
    come while another one is used.
    """
    into: dict[int, int] = defaultdict(int)
    for edge, count in buffers.items():
        into[edge[1]] += count
    return max(2, sum(into[stage] for stage in stages))
