"""PipelineParallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.layouts import StageRanks
from torsh_runtime.parallel.pipeline import batches, builders
from torsh_runtime.parallel.pipeline.autograd import autograd_of
from torsh_runtime.parallel.pipeline.choosing import best_table
from torsh_runtime.parallel.pipeline.executor import Executor, Work, ahead_of
from torsh_runtime.parallel.pipeline.failing import Failures
from torsh_runtime.parallel.pipeline.lanes import lanes_of
from torsh_runtime.parallel.pipeline.measuring import measured_costs, timeline_of
from torsh_runtime.parallel.pipeline.planning import Plan, agreed, planned, wrapped
from torsh_runtime.parallel.pipeline.sharing import Sharing, check_wanted, merged, shared
from torsh_runtime.parallel.pipeline.simulation import Costs, Simulation, simulate
from torsh_runtime.parallel.pipeline.stage import HOLDS, REDUCES, Stage
from torsh_runtime.parallel.pipeline.table import Step, Table
from torsh_runtime.parallel.pipeline.wire import Wire
from torsh_runtime.parallel.scaler import ShardedGradScaler, scale_of

AXIS = "pp"
DATA_AXES = ("dp", "cp")
"""Along which batches differ."""


class PipelineParallel:
    """A model whose stages are on different ranks, and whose batches go through in microbatches
    (Huang et al., "GPipe", 2019). The numbers are those of one process that accumulates the
    gradients of the same microbatches; with whole backward passes and without data parallelism and
    tied parameters they are its bits.

        pipeline = tr.PipelineParallel(model, 8, mesh=mesh, cuts=["blocks.6"], loss_fn=loss)
        optimizer = AdamW(pipeline.module.parameters())
        loss = pipeline.step(batch, target)  # gradients are there, and the loss on every rank
        optimizer.step()

    Attributes: module (this rank's layers, under the names of the whole model; for optimizers,
    checkpoints and clip_grad_norm_), stages (by number, as `wrap` made them), group, placement.
    """

    def __init__(
        self,
        stages: Any,
        num_microbatches: int,
        placement: Sequence[int] | None = None,
        *,
        mesh: DeviceMesh | None = None,
        group: Any = None,
        schedule: str | Path | Table = "1f1b",
        loss_fn: Callable[[Any, Any], Any] | None = None,
        cuts: Sequence[str] | int | None = None,
        example: Any = None,
        tokens: Callable[[Any], Any] | None = None,
        checkpoint: bool = False,
        wrap: Callable[[Any], Any] | None = None,
        memory_limit: float | None = None,
    ) -> None:
        """All ranks of the pipeline call it, with the same arguments and the same model.

        stages: a module for each stage, or a model that `cuts` tells how to cut: names of the
            layers that later stages begin with, or how many stages there are to be, as equal as
            measuring a microbatch `example` makes them. What its layers are layers_of() says. With
            an example it is also checked that they give what the model's own forward() gives.
        placement: the rank of each stage; None is the schedule's.
        mesh: its axis "pp" is the pipeline, and all its ranks call this; along "dp" and "cp", where
            it has them, batches differ: the loss and the weights of microbatches are of all of
            them. Without a mesh `group` has the ranks; None is the default group.
        schedule: "gpipe", "1f1b", "interleaved", "zb-h1", "zbv", with "+1" for a forward pass more
            ahead ("1f1b+1"), "auto", a Table, or the path of one (load_table()).
        loss_fn: (output of the last stage, target) -> the mean over a microbatch.
        tokens: target -> the number of elements that loss_fn takes the mean of; None: its rows.
        checkpoint: keep inputs of stages only, and go forward again before going back.
        wrap: called with each of this rank's stages, such as for DistributedDataParallel over
            mesh["dp", "cp"], whose gradients are reduced once per step. It has to be there where
            batches differ; it may return the stage as it is if you average gradients yourself.
        memory_limit: bytes of activations that "auto" may let a rank hold; None: any.

        ConfigError on all ranks if something does not fit, or differs between them.
        """
        group = mesh.get_group(AXIS) if mesh is not None else group_of(group)
        self.group: ProcessGroup = group
        self.num_microbatches, self._memory_limit = num_microbatches, memory_limit
        self._loss_fn, self._tokens, self._data = loss_fn, tokens, _data_group(mesh)
        everyone = self._everyone = group if mesh is None else group_of(mesh)
        how = schedule, placement, num_microbatches
        plan = planned(group, everyone, stages, cuts, example, *how)
        self.placement, self._table = plan.placement, plan.table
        own = self._take_part(plan)
        self.stages = wrapped(own, wrap, everyone, self._data)
        self.module.parallel_wrappers = tuple(self.stages.values()) if wrap else ()
        kept = [self.stages[n] is m or hasattr(self.stages[n], REDUCES) for n, m in own.items()]
        self._unreduced = _unreduced(self.stages, self._data, wrap is not None)
        self._can_split = bool(group.all_gather_numbers(np.array([all(kept)], np.int64)).all())
        self._make_executor(len(plan.modules) - 1, checkpoint)
        self._failures = Failures(group, mesh, self._lanes)
        self._ahead: dict[Table, int] = {}
        self._check_split()
        self.costs: Costs | None = None
        """What steps take, as measure() found, which "auto" calls."""

    def _make_executor(self, last: int, checkpoint: bool) -> None:
        """last: the number of the stage that has the loss."""
        lanes, placement = self._lanes, self.placement
        self._autograd = autograd_of(self.module, None if lanes is None else lanes.like)
        self._stages = {
            n: Stage(n, m, self._autograd, self._loss_fn if n == last else None, checkpoint)
            for n, m in self.stages.items()
        }
        wire = Wire(self.group, lanes, self._autograd, placement)
        self._executor = Executor(self.group, self._stages, placement, wire)

    def _take_part(self, plan: Plan) -> dict[int, Any]:
        """This rank's stages, and with them what it has of the model, which says who has the rest;
        tied parameters are alike on all ranks that have them."""
        rank = self.group.rank
        own = {n: m for n, m in enumerate(plan.modules) if plan.placement[n] == rank}
        self.module = merged(own, plan.modules)
        tied = shared(plan.modules, plan.placement)
        ranks = [each.ranks for each in tied]
        self._lanes = lanes_of(self.group, plan.modules, ranks, plan.placement)
        self._sharing = Sharing(self.group, self._lanes, tied, self.module)
        self._sharing.send_values()
        for each in own.values():
            each.stage_ranks = StageRanks(self.group, len(own) == 1, self._sharing.earlier(each))
        self.module.stage_ranks = StageRanks(self.group, True, self._sharing.earlier(self.module))
        return own

    def _check_split(self) -> None:
        if self._table is not None and self._table.splits and not self._can_split:
            raise ConfigError(
                f"{self._table.name} has weight gradients later, and what wrap() made of stages "
                f"reduces them in backward passes: wrap with DistributedDataParallel or "
                f"FullyShardedDataParallel, or choose a schedule of whole backward passes"
            )

    def __call__(self, batch: Any) -> Any:
        """As forward()."""
        return self.forward(batch)

    @property
    def table(self) -> Table:
        """The schedule. ConfigError before "auto" has chosen one."""
        if self._table is None:
            raise ConfigError("schedule='auto' chooses its table in the first step()")
        return self._table

    @property
    def present(self) -> Step | None:
        """The step of the table that this rank is taking, for who looks on from within its modules;
        None outside of step(), forward() and evaluate()."""
        return self._executor.present

    @property
    def peaks(self) -> dict[int, int]:
        """How many microbatches each of this rank's stages has had alive at once, at most."""
        return {number: stage.peak for number, stage in self._stages.items()}

    def step(self, batch: Any, target: Any, *, scaler: ShardedGradScaler | None = None) -> float:
        """Accumulate the gradients of a batch. Returns its loss, on every rank: the mean over all
        elements that the microbatches' losses are means of, along the mesh's data axes, too.

        batch: the first stage's input; target: loss_fn's. Tensors, or tuples of them, whose rows
        are dealt to microbatches, or lists of num_microbatches of such, of any shapes. Ranks
        without the first stage may give None for the one, those without the last for the other.
        scaler: whose scale gradients are multiplied with, and not the loss that is returned; all
        ranks of the mesh pass theirs, and scaler.step(optimizer) follows.

        ConfigError on all ranks of the mesh for a batch that does not fit one of them, and for
        scalers by which not all would step alike; PipelineError if a stage raises, or waits in
        vain: then the group is dead.
        """
        return self._failures.telling(lambda: self._step(batch, target, scaler))

    def _step(self, batch: Any, target: Any, scaler: ShardedGradScaler | None) -> float:
        if self._table is None:
            costs = self.costs or self._measure(batch, target)
            limit = self._memory_limit
            splits = self._can_split
            table = best_table(costs, self.placement, self.num_microbatches, limit, splits)
            self._table = table.with_reductions()
        weights = self._run(self.table, batch, target, scaler=scaler)
        self._sharing.add_gradients()
        return self._loss(weights)

    def forward(self, batch: Any) -> Any:
        """The last stage's output for a batch, which cannot be differentiated, on the rank that has
        that stage; None on the others. Batches of other sizes have fewer microbatches."""
        self._failures.telling(lambda: self._run(None, batch, None))
        outputs = [each for _, each in sorted(self._executor.outputs.items())]
        if outputs and isinstance(outputs[0], tuple):
            return tuple(self._autograd.joined(each) for each in zip(*outputs, strict=True))
        return self._autograd.joined(outputs) if outputs else None

    def evaluate(self, batch: Any, target: Any) -> float:
        """The loss of a batch, as step() has it, without gradients; of any number of rows."""
        return self._failures.telling(lambda: self._loss(self._run(None, batch, target)))

    def measure(self, batch: Any, target: Any) -> Costs:
        """What steps of the first microbatch take, in seconds, and what it holds, in bytes; the
        same on all ranks. Gradients, buffers and random numbers are afterwards what they were."""
        return self._failures.telling(lambda: self._measure(batch, target))

    def _measure(self, batch: Any, target: Any) -> Costs:
        self.costs = measured_costs(
            self.group,
            self._lanes,
            self._stages,
            self.placement,
            lambda table: self._run(table, batch, target, most=1),
            self._can_split,
        )
        return self.costs

    def simulation(self) -> Simulation:
        """What the table comes to with the costs that have been measured; without them with those
        of equal stages."""
        return simulate(self.table, self.costs)

    def timeline(self) -> Simulation:
        """What the last step() came to, of all ranks: seconds since each began. All call it."""
        return timeline_of(self.group, self._executor.spans, self.table)

    def _run(
        self,
        table: Table | None,
        batch: Any,
        target: Any,
        most: int | None = None,
        scaler: ShardedGradScaler | None = None,
    ) -> list[float]:
        """The microbatches' weights, where targets are known. Without a table one for evaluation;
        most: so many microbatches at most."""
        if table is not None and self._loss_fn is None:
            raise ConfigError("the pipeline has no loss_fn, which training takes: pass it one")
        scale, unfit = scale_of(scaler, self._everyone)
        problem = unfit or ("" if table is None else self._unreduced or self._autograd.unfit())
        trains = table is not None
        inputs, targets, key, count = self._agreed_parts(batch, target, trains, scale, problem)
        inputs, targets, count = inputs[:most], targets[:most], min(count, most or count)
        if table is None:
            table = builders.forward_only(self.placement, count)
        for stage in self._stages.values():
            stage.splits = table.splits
        is_last = self.placement[-1] == self.group.rank
        weights = self._weights(targets) if is_last and targets else []
        scaled = [weight * scale for weight in weights]
        work = Work(inputs, [_single(each) for each in targets], scaled, table.trains)
        if table not in self._ahead:
            own = [*self._stages]
            self._ahead[table] = ahead_of(simulate(table, Costs(transfer=1.0)).buffers, own)
        ahead = self._ahead[table]
        if table.trains:
            self._sharing.begin()
        try:
            self._executor.run(table, work, (key, table.name), ahead)
        finally:
            self._executor.forget()
        return weights

    def _agreed_parts(
        self, batch: Any, target: Any, trains: bool, scale: float, problem: str
    ) -> Any:
        """This rank's microbatches, a key of their shapes, and how many there are. One exchange of
        numbers, so that nobody begins what others do not: in training of the whole mesh, whose
        replicas would wait for each other's gradients."""
        inputs: list[Any] = []
        targets: list[Any] = []
        count = self.num_microbatches
        try:
            if not trains and (batch is not None or target is not None):
                given = target if batch is None else batch
                count = batches.count_of(given, count)
            inputs = [] if batch is None else batches.microbatches(batch, count)
            targets = [] if target is None else batches.microbatches(target, count)
            self._check_given(inputs, targets, trains)
        except ConfigError as error:
            problem = problem or str(error)
        said = batches.shapes(inputs)
        own = [batches.digest(said) if inputs else 0, count if inputs or targets else 0]
        own += [bool(problem), self._frozen(), batches.dealt(batch), batches.dealt(target)]
        own += [int(np.float64(scale).view(np.int64)), self.group.ranks[0], *self._sharing.wanted()]
        asked = self._everyone if trains else self.group
        told = asked.all_gather_numbers(np.array(own, np.int64))
        pipelines = [told[told[:, 7] == first] for first in {*told[:, 7].tolist()}]
        is_one = all(len(each) < 2 for rows in pipelines for each in _said_of_batches(rows))
        if told[:, 2].any() or not is_one or (told[:, 6] != told[0, 6]).any():
            text = f"a batch of {said}, whose loss is scaled by {scale}"
            agreed(asked, lambda: _raise(problem), lambda _: text)
        check_wanted(asked, told[:, 8:])
        for rows in pipelines:
            first, last = rows[self.placement[0], 4], rows[self.placement[-1], 5]
            batches.check_together(int(first), int(last), max(_said_of_batches(rows)[1]))
        rows = told[told[:, 7] == self.group.ranks[0]]
        keys, counts = _said_of_batches(rows)
        return inputs, targets, (keys.pop(), *rows[:, 3].tolist()), counts.pop()

    def _frozen(self) -> int:
        """A key of which parameters want no gradients, on which depends what stages send."""
        wanted = "".join("01"[each.requires_grad] for each in self.module.parameters())
        return batches.digest(wanted)

    def _check_given(self, inputs: list[Any], targets: list[Any], trains: bool) -> None:
        if self.placement[0] == self.group.rank and not inputs:
            raise ConfigError("the rank of the first stage has no batch: pass it one")
        if self.placement[-1] == self.group.rank and trains and not targets:
            raise ConfigError("the rank of the last stage has no target: pass it one")

    def _weights(self, targets: list[Any]) -> list[float]:
        """How much each microbatch counts in the mean over all; what the mean along data axes
        divides by is made up for."""
        counts = batches.counts([_single(each) for each in targets], self._tokens)
        total = np.array([sum(counts)])
        if self._data is not None:
            self._data.all_reduce(total)
            total /= self._data.world_size
        return [count / float(total[0]) if total[0] else math.nan for count in counts]

    def _loss(self, weights: list[float]) -> float:
        found = np.zeros(1)
        if self.placement[-1] == self.group.rank:
            losses = self._executor.outputs
            number = self._autograd.number
            found[0] = sum(w * number(losses[m]) for m, w in enumerate(weights) if w)
            if self._data is not None:
                self._data.all_reduce(found)
                found /= self._data.world_size
        if self._lanes is not None:
            self.group.barrier()  # messages on GPUs hold nobody up: has a stage raised meanwhile?
        self.group.broadcast(found, self.placement[-1])
        return float(found[0])


def _said_of_batches(rows: NDArray[np.int64]) -> tuple[set[int], set[int]]:
    """The keys of shapes, and the numbers of microbatches, that a pipeline's ranks have."""
    keys, counts = ({*column.tolist()} - {0} for column in rows.T[:2])
    return keys, counts


def _data_group(mesh: DeviceMesh | None) -> ProcessGroup | None:
    names = [] if mesh is None else [name for name in DATA_AXES if name in mesh.mesh_dim_names]
    if mesh is None or not names:
        return None
    view = mesh[tuple(names)]
    group = view.flatten().get_group() if len(names) > 1 else view.get_group()
    return None if group.world_size == 1 else group


def _unreduced(stages: Mapping[int, Any], data: ProcessGroup | None, is_wrapped: bool) -> str:
    """What is wrong where batches differ between ranks, and nothing averages gradients over these;
    "" if nothing is."""
    if data is None:
        return ""
    ranks = f"ranks {', '.join(map(str, data.ranks))} have different batches"
    if not is_wrapped:
        return (
            f"{ranks}, and nothing averages their gradients: pass wrap=, which puts a "
            f"DistributedDataParallel over them around a stage, or returns it where you do it"
        )
    whole = [s for s in stages.values() if hasattr(s, REDUCES) and not hasattr(s, HOLDS)]
    averaged = [stage.process_group.ranks for stage in whole]
    wrong = next((over for over in averaged if {*over} != {*data.ranks}), None)
    if wrong is None:
        return ""
    return (
        f"{ranks}, and gradients are averaged over {', '.join(map(str, wrong))}: wrap stages over "
        f"mesh['dp'], or mesh['dp', 'cp'] where the mesh has both"
    )


def _single(arguments: tuple[Any, ...]) -> Any:
    return arguments[0] if len(arguments) == 1 else arguments


def _raise(problem: str) -> None:
    if problem:
        raise ConfigError(problem)
