"""Trains models whose stages are on different ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.pipeline import builders
from torsh_runtime.parallel.pipeline.autograd import autograd_of
from torsh_runtime.parallel.pipeline.batch_loss import BatchLoss
from torsh_runtime.parallel.pipeline.choosing import best_table, of_fewer
from torsh_runtime.parallel.pipeline.executor import Executor, Work, ahead_of
from torsh_runtime.parallel.pipeline.failing import Failures
from torsh_runtime.parallel.pipeline.giving import (
    Giving,
    Purpose,
    own_loss,
    result_of,
    single,
)
from torsh_runtime.parallel.pipeline.losses import Judged, agree_on_loss
from torsh_runtime.parallel.pipeline.measuring import measured_costs, timeline_of
from torsh_runtime.parallel.pipeline.planning import check_split, part_of, planned, wrapped
from torsh_runtime.parallel.pipeline.replicas import data_group, unreduced
from torsh_runtime.parallel.pipeline.simulation import Costs, Simulation, simulate
from torsh_runtime.parallel.pipeline.stage import REDUCES, Stage
from torsh_runtime.parallel.pipeline.stale import refuse_stale
from torsh_runtime.parallel.pipeline.table import Step, Table
from torsh_runtime.parallel.pipeline.wire import Wire
from torsh_runtime.parallel.scaler import ShardedGradScaler, scale_of

AXIS = "pp"
_WHOLE = "save pipeline.module with a Checkpointer and load that into a model in one process"
_INSTEAD = {
    "generate": f": no rank has all layers, and stages keep no cache. To generate, {_WHOLE}",
    "save_pretrained": ": no rank has all layers. Call tr.save_pretrained(pipeline, path) instead",
}
"""Alternatives to methods that pipelines do not have."""


class PipelineParallel:
    """Runs a model whose stages are on different ranks, with batches cut into microbatches.

    See Huang et al., "GPipe", 2019. The numbers are those of one process that accumulates the
    gradients of the same microbatches. With whole backward passes, and without data parallelism and
    tied parameters, all bits are equal.

    Attributes:
        module: This rank's layers, under the names of the whole model; for optimizers, checkpoints
            and clip_grad_norm_.
        stages: This rank's stages by number, as `wrap` made them.
        group: The pipeline's ranks.
        placement: The rank of each stage.

    Example:
        ```python
        pipeline = tr.PipelineParallel(model, 8, mesh=mesh, cuts=["blocks.6"], loss_fn=loss_fn)
        optimizer = torch.optim.AdamW(pipeline.module.parameters())
        loss = pipeline.step(batch, target)  # accumulates gradients; the loss is on every rank
        optimizer.step()
        ```
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
        """Create a pipeline. All its ranks call this, with the same arguments and the same model.

        Args:
            stages: A module for each stage, or a model that is cut by `cuts`. Its layers are those
                of layers_of().
            num_microbatches: The number of parts that a batch is cut into.
            placement: The rank of each stage; None is the schedule's placement.
            mesh: A mesh whose axis "pp" is the pipeline, and all its ranks call this; along "dp"
                and "cp", where it has them, batches differ: the loss and the weights of
                microbatches cover all of these.
            group: The ranks if there is no mesh; None is the default group.
            schedule: "gpipe", "1f1b", "interleaved", "zb-h1", "zbv", with "+1" for one more forward
                pass ahead ("1f1b+1"), "auto", a Table, or the path of one (load_table()).
            loss_fn: A function (output of the last stage, target) -> the mean over a microbatch. It
                is called three more times in the first step, with copies of a row, which tell
                whether it is a mean: what it counts or logs counts these, too.
            cuts: Names of the layers that later stages begin with, or the number of stages, made as
                equal as possible by measurements with `example`.
            example: A microbatch. With it, it is also checked that the layers give what the model's
                own forward() gives.
            tokens: A function target -> the number of elements that loss_fn takes the mean of; None
                is its rows.
            checkpoint: Whether to keep only the inputs of stages, and go forward again before going
                back.
            wrap: Called with each of this rank's stages, such as for DistributedDataParallel over
                mesh["dp", "cp"], whose gradients are reduced once per step. It is required where
                batches differ; it may return the stage as it is if you average gradients yourself.
            memory_limit: Bytes of activations that "auto" may let a rank hold; None is any.

        Raises:
            ConfigError: On all ranks if arguments do not fit, or differ between ranks.
            CommError: If an exchange among the ranks fails.
        """
        group = mesh.get_group(AXIS) if mesh is not None else group_of(group)
        self.group: ProcessGroup = group
        self.num_microbatches, self._memory_limit = num_microbatches, memory_limit
        self._loss_fn, self._tokens, self._data = loss_fn, tokens, data_group(mesh)
        everyone = self._everyone = group if mesh is None else group_of(mesh)
        how = schedule, placement, num_microbatches
        plan = planned(group, everyone, stages, cuts, example, *how)
        self.placement, self._table = plan.placement, plan.table
        own, self.module, self._lanes, self._sharing = part_of(plan, group)
        self.stages = wrapped(own, wrap, everyone, self._data)
        self.module.parallel_wrappers = tuple(self.stages.values()) if wrap else ()
        kept = [self.stages[n] is m or hasattr(self.stages[n], REDUCES) for n, m in own.items()]
        self._unreduced = unreduced(self.stages, self._data, wrap is not None)
        self._is_kept = all(kept)
        self._make_executor(plan.modules, checkpoint)
        self._failures = Failures(group, mesh, self._lanes)
        if self._table is not None and self._table.splits:
            check_split(self._table.name, self._can_split)
        if cuts is not None:
            refuse_stale(stages, self.module)
        self.costs: Costs | None = None
        """What steps take, as measure() found, which "auto" calls."""

    def _make_executor(self, modules: Sequence[Module], checkpoint: bool) -> None:
        self._ahead: dict[Table, int] = {}
        self._fewer: dict[int, Table] = {}
        self._has_agreed = set[bool]()
        lanes, placement, last = self._lanes, self.placement, len(modules) - 1
        self._autograd = autograd_of(self.module, None if lanes is None else lanes.like)
        is_whole = hasattr(modules[last], "counted")
        loss_fn = own_loss if is_whole and self._loss_fn is None else self._loss_fn
        self._judged = None if loss_fn is None else Judged(loss_fn, self._autograd)
        self._stages = {
            n: Stage(n, m, self._autograd, self._judged if n == last else None, checkpoint)
            for n, m in self.stages.items()
        }
        ends, is_own = (placement[0], placement[-1]), loss_fn is own_loss
        counts_rows = not is_own and self._tokens is None
        self._giving = Giving(self.group, self._everyone, ends, is_whole, is_own, counts_rows)
        counted = getattr(modules[last], "counted", None)
        how = self._data, is_own, self._tokens, counted
        self._batch_loss = BatchLoss(self.group, placement[-1], *how)
        wire = Wire(self.group, lanes, self._autograd, placement)
        self._executor = Executor(self.group, self._stages, placement, wire)

    @cached_property
    def _can_split(self) -> bool:
        """Return whether weight gradients may come later on all ranks, which call this together."""
        own = np.array([self._is_kept], np.int64)
        return bool(self.group.all_gather_numbers(own).all())

    if not TYPE_CHECKING:  # a checker would take any name

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, which says how a pipeline does what modules do."""
            said = _INSTEAD.get(name, "")
            if not said and hasattr(self.__dict__.get("module"), name):
                said = f": this rank's stages have it, pipeline.module.{name}"
            raise AttributeError(f"{type(self).__name__} has no {name!r}{said}")

    def __call__(self, batch: Any) -> Any:
        """Call forward() with the batch."""
        return self.forward(batch)

    @property
    def table(self) -> Table:
        """Return the schedule.

        Raises:
            ConfigError: Before "auto" has chosen one.
        """
        if self._table is None:
            raise ConfigError("schedule='auto' chooses its table in the first step()")
        return self._table

    @property
    def present(self) -> Step | None:
        """Return the step of the table that this rank is taking, for observers within its modules.
        It is None outside of step(), forward() and evaluate()."""
        return self._executor.present

    @property
    def peaks(self) -> dict[int, int]:
        """Return the largest number of live microbatches of each of this rank's stages."""
        return {number: stage.peak for number, stage in self._stages.items()}

    def step(
        self, batch: Any, target: Any = None, *, scaler: ShardedGradScaler | None = None
    ) -> float:
        """Accumulate the gradients of a batch, and return its loss on every rank.

        The loss is the mean over all elements that the microbatches' losses are means of, along the
        mesh's data axes, too.

        Args:
            batch: The first stage's input: a tensor, or a tuple of them, whose rows are divided
                into microbatches, or a list of num_microbatches of such, of any shapes. Ranks
                without the first stage may give None.
            target: The target of loss_fn, in the same forms. Ranks without the last stage may give
                None.
            scaler: Multiplies gradients, but not the returned loss, by its scale. All ranks of the
                mesh pass theirs, and call scaler.step(optimizer) afterwards.

        Returns:
            The loss.

        Raises:
            ConfigError: On all ranks of the mesh for a batch that does not fit one of them, and for
                scalers with which ranks would step differently.
            PipelineError: If a stage raises, or its waiting times out: the group is then dead.

        Example:
            ```python
            loss = pipeline.step(batch, target)
            optimizer.step()
            optimizer.zero_grad()
            ```
        """
        return self._failures.telling(lambda: self._step(batch, target, scaler))

    def _step(self, batch: Any, target: Any, scaler: ShardedGradScaler | None) -> float:
        if self._table is None:
            costs = self.costs or self._measure(batch, target)
            limit = self._memory_limit
            splits = self._can_split
            table = best_table(costs, self.placement, self.num_microbatches, limit, splits)
            self._table = table.with_reductions()
        weights = self._train(self._table_of, batch, target, scaler=scaler)
        self._sharing.add_gradients()
        return self._mean(weights)

    def _mean(self, weights: list[float]) -> float:
        # Messages on GPUs hold nobody up: a stage may have raised meanwhile.
        return self._batch_loss.mean(self._executor.outputs, weights, self._lanes is not None)

    def _table_of(self, count: int) -> Table:
        """Return the schedule for a batch that makes `count` microbatches."""
        if count == self.num_microbatches:
            return self.table
        if count not in self._fewer:
            self._fewer[count] = of_fewer(self.table, self.placement, count).with_reductions()
        return self._fewer[count]

    def forward(self, batch: Any) -> Any:
        """Return the last stage's output for a batch, on the rank that has it; None on the others.

        It cannot be differentiated. Batches of other sizes may have fewer microbatches.

        Args:
            batch: As step().

        Raises:
            ConfigError: As step().
            PipelineError: As step().

        Example:
            ```python
            scores = pipeline.forward(batch)
            if scores is not None:  # on the rank of the last stage
                print(scores.argmax(-1))
            ```
        """
        purpose = Purpose(trains=False, has_losses=False)
        table_of = partial(builders.forward_only, self.placement)
        self._failures.telling(lambda: self._run(table_of, batch, None, purpose))
        outputs = [result_of(each) for _, each in sorted(self._executor.outputs.items())]
        if outputs and isinstance(outputs[0], tuple):
            return tuple(self._joined(each) for each in zip(*outputs, strict=True))
        return self._joined(outputs) if outputs else None

    def _joined(self, parts: Sequence[Any]) -> Any:
        """Concatenate rows of microbatches; return values without rows, as losses, in a list."""
        has_rows = all(len(getattr(each, "shape", ())) for each in parts)
        return self._autograd.joined(parts) if has_rows else [*parts]

    def evaluate(self, batch: Any, target: Any = None) -> float:
        """Return the loss of a batch as step() does, without gradients, for any number of rows.

        Args:
            batch: As step().
            target: As step().

        Raises:
            ConfigError: As step().
            PipelineError: As step().

        Example:
            ```python
            loss = pipeline.evaluate(batch, target)  # the same on all ranks
            ```
        """
        problem = self._batch_loss.uncounted(batch)
        purpose = Purpose(trains=False, has_losses=self._giving.has_own_loss or target is not None)
        table_of = partial(builders.forward_only, self.placement)
        how = table_of, batch, target, purpose, None, problem
        return self._failures.telling(lambda: self._mean(self._run(*how)))

    def measure(self, batch: Any, target: Any = None) -> Costs:
        """Measure a microbatch: seconds of its steps, and bytes that it holds. The result is the
        same on all ranks. Gradients, buffers and random numbers are restored."""
        return self._failures.telling(lambda: self._measure(batch, target))

    def _measure(self, batch: Any, target: Any) -> Costs:
        self.costs = measured_costs(
            self.group,
            self._lanes,
            self._stages,
            self.placement,
            lambda table: self._train(lambda _: table, batch, target, most=1),
            self._can_split,
        )
        return self.costs

    def simulation(self) -> Simulation:
        """Simulate the table with the measured costs, or with those of equal stages."""
        return simulate(self.table, self.costs)

    def timeline(self) -> Simulation:
        """Return the times of all ranks' steps in the last step(), in seconds since each began.
        All ranks call it."""
        return timeline_of(self.group, self._executor.spans, self.table)

    def _run(
        self,
        table_of: Callable[[int], Table],
        batch: Any,
        target: Any,
        purpose: Purpose,
        most: int | None = None,
        problem: str = "",
    ) -> list[float]:
        """Run a batch and return the microbatches' weights, if losses are wanted.

        table_of: makes the table for a number of microbatches. most: largest number of
        microbatches.
        """
        how = batch, target, self.num_microbatches, purpose, self.module, self._sharing, problem
        given = self._giving.agreed(*how).first(most)
        table = table_of(given.microbatches)
        for stage in self._stages.values():
            stage.splits = table.splits
        is_last = self.placement[-1] == self.group.rank
        weights = self._batch_loss.weights(given) if is_last and purpose.has_losses else []
        scaled = [weight * purpose.scale for weight in weights]
        targets = [single(each) for each in given.targets]
        calls = given.inputs if self._giving.is_whole else []
        work = Work(given.inputs, calls, targets, purpose.has_losses, scaled, table.trains)
        if table not in self._ahead:
            own = [*self._stages]
            self._ahead[table] = ahead_of(simulate(table, Costs(transfer=1.0)).buffers, own)
        if table.trains:
            self._sharing.begin()
        try:
            self._executor.run(table, work, (given.key, table.name), self._ahead[table])
        finally:
            self._executor.forget()
        if purpose.has_losses and purpose.trains not in self._has_agreed:
            self._has_agreed.add(purpose.trains)
            agree_on_loss(self._judged, self._everyone if purpose.trains else self.group)
        return weights

    def _train(
        self,
        table_of: Callable[[int], Table],
        batch: Any,
        target: Any,
        most: int | None = None,
        scaler: ShardedGradScaler | None = None,
    ) -> list[float]:
        if self._loss_fn is None and not self._giving.has_own_loss:
            raise ConfigError("the pipeline has no loss_fn, which training takes: pass it one")
        scale, unfit = scale_of(scaler, self._everyone)
        problem = (
            unfit or self._unreduced or self._autograd.unfit() or self._batch_loss.uncounted(batch)
        )
        purpose = Purpose(trains=True, has_losses=True, scale=scale)
        return self._run(table_of, batch, target, purpose, most, problem)
