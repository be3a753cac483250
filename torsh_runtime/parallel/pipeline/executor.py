"""Runs a rank's row of a table."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import CommError, PipelineError
from torsh_runtime.parallel.pipeline.simulation import Span
from torsh_runtime.parallel.pipeline.stage import REDUCES, Stage
from torsh_runtime.parallel.pipeline.table import COMPUTES, Kind, Row, Step
from torsh_runtime.parallel.pipeline.wire import Message, Wire


@dataclass(frozen=True)
class Work:
    """What a step of training or evaluation is of. The lists have a member for each microbatch."""

    batch: Sequence[tuple[Any, ...]]
    """The first stage's inputs."""
    targets: Sequence[Any]
    """Of the last stage; empty where outputs are wanted."""
    weights: Sequence[float]
    """How much the microbatches' losses count."""
    trains: bool


class Executor:
    """All of one rank's stages. Each step is taken when what it needs has come; receives are posted
    `ahead` of the steps that need them, and sends never block.
    """

    def __init__(
        self, group: ProcessGroup, stages: Mapping[int, Stage], num_stages: int, wire: Wire
    ) -> None:
        self._group, self._stages, self._last = group, stages, num_stages - 1
        self._wire = wire
        self._here: dict[Message, Sequence[Any]] = {}
        self.spans: list[Span] = []
        """When steps of the last run began and ended; seconds since it began."""
        self.outputs: dict[int, Any] = {}
        """What the last stage returned, by microbatch: losses, or outputs where there are no
        targets."""

    def run(self, row: Row, work: Work, key: object, ahead: int) -> None:
        """Take all steps. `key` stands for the batch's shapes; `ahead`: so many messages at most
        have memory before they are needed.

        Raises PipelineError if a step fails, here or on another rank: then the group is dead.
        """
        self._work, self.spans, self.outputs = work, [], {}
        self._wire.begin(key)
        for number, stage in self._stages.items():
            back = [s.microbatch for s in row if s.stage == number and s.kind is Kind.BACKWARD]
            stage.last = back[-1] if back else None
        awaited = [message for message in map(self._awaited, row) if message is not None]
        begun = time.perf_counter()
        taken = 0
        for step in row:
            for message in awaited[taken : taken + ahead]:
                self._wire.expect(message)
            taken += self._awaited(step) is not None
            with self._blamed(step):
                start = self._take(step, begun)
            self.spans.append(Span(step, start, time.perf_counter() - begun))
        with self._blamed(row[-1]):
            self._wire.end()

    def forget(self) -> None:
        """What was under way in a run that failed."""
        self._here.clear()
        self._wire.forget()
        for stage in self._stages.values():
            stage.forget()

    def _take(self, step: Step, begun: float) -> float:
        """When it began, which is when what it needs had come."""
        stage, kind, microbatch = self._stages[step.stage], step.kind, step.microbatch or 0
        if kind is Kind.FORWARD:
            inputs = self._inputs(step)
            start = time.perf_counter() - begun
            self._forward(stage, microbatch, inputs)
        elif kind in (Kind.BACKWARD, Kind.INPUT):
            gradients = self._gradients(step)
            start = time.perf_counter() - begun
            back = stage.backward if kind is Kind.BACKWARD else stage.backward_inputs
            self._send_back(stage, microbatch, back(microbatch, gradients))
        else:
            start = time.perf_counter() - begun
            self._by_stage(stage, kind, microbatch)
        return start

    def _by_stage(self, stage: Stage, kind: Kind, microbatch: int) -> None:
        if kind is Kind.WEIGHT:
            stage.weights(microbatch)
            return
        names = {Kind.REDUCE: REDUCES, Kind.UNSHARD: "unshard", Kind.RESHARD: "reshard"}
        call: Callable[[], object] | None = getattr(stage.module, names[kind], None)
        if call is not None:
            call()

    def _inputs(self, step: Step) -> Sequence[Any]:
        message = self._awaited(step, everywhere=True)
        if message is None:
            return self._work.batch[step.microbatch or 0]
        autograd = self._stages[step.stage].autograd
        here = self._here.pop(message, None)
        if here is not None:
            return [autograd.leaf(autograd.values(each), each.requires_grad) for each in here]
        values = self._wire.receive(message)
        specs = self._wire.specs(message) or ()
        return [
            autograd.leaf(each, spec.wants_gradient and self._work.trains)
            for each, spec in zip(values, specs, strict=True)
        ]

    def _forward(self, stage: Stage, microbatch: int, inputs: Sequence[Any]) -> None:
        work, is_last = self._work, stage.number == self._last
        target = work.targets[microbatch] if is_last and work.targets else None
        if work.trains and is_last:
            (loss,) = stage.forward(microbatch, inputs, target, work.weights[microbatch])
            # Without its graph, which would keep the inputs and their gradients.
            self.outputs[microbatch] = stage.autograd.leaf(stage.autograd.values(loss), False)
            return
        if work.trains:
            outputs = stage.forward(microbatch, inputs, target, 0.0)
        else:
            output = stage.evaluate(inputs)
            if is_last and work.targets:
                output = stage.loss(output, target)
            outputs = output if isinstance(output, tuple) and not is_last else (output,)
        if is_last:
            self.outputs[microbatch] = outputs[0]
            return
        message = Message(stage.number, stage.number + 1, microbatch)
        specs = stage.sent(outputs, inputs)
        if stage.number + 1 in self._stages:
            wanted = zip(outputs, specs, strict=True)
            leaf, values = stage.autograd.leaf, stage.autograd.values
            self._here[message] = [leaf(values(o), spec.wants_gradient) for o, spec in wanted]
        else:
            self._wire.send(message, list(map(stage.autograd.values, outputs)), specs)

    def _gradients(self, step: Step) -> Sequence[Any]:
        message = self._awaited(step, everywhere=True)
        if message is None:
            return ()
        here = self._here.pop(message, None)
        return self._wire.receive(message) if here is None else here

    def _send_back(self, stage: Stage, microbatch: int, gradients: Sequence[Any]) -> None:
        if not stage.number:
            return
        message = Message(stage.number, stage.number - 1, microbatch)
        if stage.number - 1 in self._stages:
            self._here[message] = gradients
        else:
            self._wire.send(message, gradients, ())

    def _awaited(self, step: Step, everywhere: bool = False) -> Message | None:
        """The message that a step needs; from another rank, unless `everywhere`."""
        source = {Kind.FORWARD: -1, Kind.BACKWARD: 1, Kind.INPUT: 1}.get(step.kind)
        if source is None or step.stage + source not in range(self._last + 1):
            return None
        if not everywhere and step.stage + source in self._stages:
            return None
        return Message(step.stage + source, step.stage, step.microbatch or 0)

    @contextmanager
    def _blamed(self, step: Step) -> Iterator[None]:
        """What is raised says where."""
        try:
            yield
        except Exception as error:
            waits = isinstance(error, CommError) and step.kind in COMPUTES[:3]
            doing = f"{step.kind.value}{'' if step.microbatch is None else step.microbatch}"
            text = f"waits for what {doing} needs" if waits else doing
            reason = f"{type(error).__name__}: {error}"
            raise PipelineError(
                self._group.rank, step.stage, step.microbatch, text, reason
            ) from error


def ahead_of(buffers: Mapping[Any, int], stages: Sequence[int]) -> int:
    """How many messages a rank with these stages has memory ready for: as many as wait for it at
    once in the simulation, and two at least, so that one can come while another one is used."""
    into: dict[int, int] = defaultdict(int)
    for edge, count in buffers.items():
        into[edge[1]] += count
    return max(2, sum(into[stage] for stage in stages))
