"""Makes ranks agree on a plan before a pipeline is made."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torsh_runtime.comm.agreement import Attempt, agree, compared, complaint, texts_of_all
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of_model
from torsh_runtime.framework.models import kind_of, trained_parameters
from torsh_runtime.parallel.agreement import SAME_MODEL
from torsh_runtime.parallel.layouts import StageRanks, layouts_by_id
from torsh_runtime.parallel.pipeline import batches, builders
from torsh_runtime.parallel.pipeline.autograd import autograd_of
from torsh_runtime.parallel.pipeline.files import load_table
from torsh_runtime.parallel.pipeline.lanes import Lanes, device_of, lanes_of
from torsh_runtime.parallel.pipeline.measuring import unchanged
from torsh_runtime.parallel.pipeline.sharing import Sharing, merged, shared
from torsh_runtime.parallel.pipeline.simulation import simulate
from torsh_runtime.parallel.pipeline.splitting import (
    balanced,
    check_chain,
    has_own_forward,
    layers_of,
    measured,
    split_model,
    study_of,
)
from torsh_runtime.parallel.pipeline.table import Table, check

_log = logging.getLogger("torsh_runtime")
_NAME = "PipelineParallel"
_WRAP = "wrap() of PipelineParallel"


class Plan(NamedTuple):
    """Holds the plan of one pipeline."""

    modules: list[Module]
    """Modules of all stages."""
    placement: tuple[int, ...]
    table: Table | None
    """None if it is chosen when costs have been measured."""


def planned(
    group: ProcessGroup,
    everyone: ProcessGroup,
    stages: Any,
    cuts: Sequence[str] | int | None,
    example: Any,
    schedule: str | Path | Table,
    placement: Sequence[int] | None,
    num_microbatches: int,
) -> Plan:
    """Make the plan that PipelineParallel's arguments describe.

    Raises ConfigError on all ranks of `everyone`, which are those of the pipeline's mesh, if one
    has a problem, or if their plans differ.
    """
    if isinstance(schedule, Path):
        schedule = str(schedule)
    if isinstance(cuts, str):
        cuts = [cuts]
    made, told = Plan([], (), None), dict[str, object]()
    study: Any = None
    with Attempt() as attempt:
        study = None if cuts is None else study_of(stages, example)
        if cuts is not None and study is None:
            _check_chain(everyone, stages, example)
    if isinstance(cuts, int):
        cuts = _measured_cuts(everyone, stages, cuts, example, study, attempt)
    if attempt.error is None:
        with attempt:
            modules = _modules(stages, cuts) if study is None else study.stages(cuts)
            made = _plan(modules, schedule, placement, num_microbatches, group.world_size)
            told = {"pipeline": [_text(made, num_microbatches)], "layers": _layers(study)}
            told["device"] = device_of(modules) if group.world_size > 1 else ""
    agree(everyone, _NAME, told, attempt.error, SAME_MODEL)
    return made


def _plan(
    modules: list[Module],
    schedule: str | Table,
    placement: Sequence[int] | None,
    num_microbatches: int,
    ranks: int,
) -> Plan:
    """Return this rank's plan. ConfigError for arguments that do not fit."""
    count, most = num_microbatches, batches.MOST - 1  # so many steps are built below
    if not hasattr(count, "__index__") or not 1 <= count <= most:
        raise ConfigError(f"num_microbatches={count!r}: a whole number from 1 to {most}")
    table = _table(schedule)
    where = _placement(schedule, table, placement, len(modules), ranks)
    if table is None and schedule != "auto":
        table = builders.named(str(schedule), where, num_microbatches)
    if table is not None:
        check(table, len(modules), num_microbatches, where)
        if not table.trains:
            raise ConfigError(f"{table.name} has no backward passes: it does not train")
        table = table.with_reductions()
        simulate(table)
    return Plan(modules, where, table)


def _layers(study: Any) -> list[str]:
    """Return the layers of a model whose stages run its own forward(); none for other models."""
    return [] if study is None else [*study.layers]


def wrapped(
    stages: Mapping[int, Module],
    wrap: Callable[[Any], Any] | None,
    everyone: ProcessGroup,
    data: ProcessGroup | None,
) -> dict[int, Any]:
    """Return what wrap() makes of a rank's stages.

    Raises ConfigError on all ranks if it raises on any: ranks of other stages would wait, and
    replicas of the stage in their wrappers.
    """
    call = wrap or (lambda stage: stage)
    made: dict[int, Any] = {}
    with Attempt() as attempt:
        for number, stage in stages.items():
            _check_unsharded(made, stages, number)
            made[number] = call(stage)
            _check_wrapped(made[number])
    if data is not None:
        with attempt:
            _meet_around_wrappers(data, attempt.error)
    agree(everyone, _WRAP, problem=attempt.error)
    return made


def _check_wrapped(made: Any) -> None:
    if hasattr(made, "set_requires_gradient_sync"):
        raise ConfigError(
            "fully_shard() reduces gradients in each backward pass, of which a stage has several: "
            "let wrap make a tr.FullyShardedDataParallel, which leaves that to the schedule"
        )


def _check_unsharded(made: Mapping[int, Any], stages: Mapping[int, Module], number: int) -> None:
    """Raise ConfigError if a stage shares a parameter with another one that has been sharded.

    It would have only the other's part of it.
    """
    own = {id(parameter): name for name, parameter in stages[number].named_parameters()}
    for other, wrapper in made.items():
        sharded = wrapper.sharded() if hasattr(wrapper, "sharded") else {}
        names = [name for key, name in own.items() if key in sharded]
        if names:
            raise ConfigError(
                f"stages {other} and {number} of one rank share {', '.join(names)}, which "
                f"FullyShardedDataParallel cannot shard for both: wrap with "
                f"DistributedDataParallel, choose a schedule with one stage for each rank, as "
                f"1f1b or zb-h1, or do not tie these weights"
            )


def _meet_around_wrappers(group: ProcessGroup, problem: Exception | None) -> None:
    """Raise ConfigError on all ranks if wrap() raised on any.

    A rank may still be within a wrapper, where ranks agree too. It then gets an error there for
    this rank's problem, and comes here next. Until then, or a timeout, this rank asks again.
    """
    deadline = time.monotonic() + group.timeout
    while (told := compared(group, _WRAP, "", problem)) is not None:
        if all(said.what == _WRAP for said in told):
            raise complaint(group, told, problem)
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{group.called(group.rank)}: {problem}; other ranks go on in wrap() whatever it "
                f"raises: let wrap() raise what wrappers raise"
            ) from problem


def _check_chain(group: ProcessGroup, model: Module, example: Any) -> None:
    """Raise ConfigError if the layers of an example's model do not give what the model gives.

    Logs a warning if there is no example, so that this is not known.
    """
    if example is None:
        if group.rank == 0 and has_own_forward(model):
            _log.warning(
                "the stages of %s call its layers one after the other, whatever its forward() "
                "does: pass example=, a microbatch, to have that compared, or say by "
                "pipeline_layers() that it is so",
                type(model).__qualname__,
            )
        return
    autograd = autograd_of(model)
    with autograd.recording(False), unchanged([model], autograd):
        begin_anew = partial(autograd.set_random_state, autograd.random_state())
        check_chain(model, batches.arguments(example), begin_anew)


def _measured_cuts(
    group: ProcessGroup, model: Module, parts: int, example: Any, study: Any, attempt: Attempt
) -> list[str]:
    """Return the layers where stages begin, by rank 0's measurements."""
    names, costs = list[str](), list[float]()
    if attempt.error is None:
        with attempt:
            names, costs = _costs(model, parts, example, study)
    agree(group, _NAME, f"layers {', '.join(names)}", attempt.error, SAME_MODEL)
    costs = json.loads(texts_of_all(group, json.dumps(costs))[0])
    return [names[place] for place in balanced(costs, parts)]


def _costs(model: Module, parts: int, example: Any, study: Any) -> tuple[list[str], list[float]]:
    """Return the names of layers, and the cost of each."""
    if study is not None:
        return [*study.layers], study.costs()
    names = [*layers_of(model)]
    if example is None:
        raise ConfigError(f"cuts={parts}: pass the example of a microbatch to measure layers")
    autograd = autograd_of(model)
    with autograd.recording(False), unchanged([model], autograd):
        return names, measured(model, batches.arguments(example), autograd.synchronise)


def _modules(stages: Any, cuts: Sequence[str] | None) -> list[Any]:
    if cuts is not None:
        return split_model(stages, cuts)
    if not isinstance(stages, list | tuple) or not stages:
        raise ConfigError(
            f"stages is a {type(stages).__qualname__}: pass a list of modules, or say where to cut "
            f"the model, cuts=[names of layers] or cuts=number of stages"
        )
    return [*stages]


def _table(schedule: str | Table) -> Table | None:
    if isinstance(schedule, Table):
        return schedule
    if schedule.endswith((".csv", ".json")):
        return load_table(schedule)
    return None


def _placement(
    schedule: str | Table,
    table: Table | None,
    placement: Sequence[int] | None,
    num_stages: int,
    ranks: int,
) -> tuple[int, ...]:
    if placement is None:
        place = builders.vee if schedule == "zbv" else builders.loop
        where = place(num_stages, ranks) if table is None else table.placement
    else:
        where = tuple(placement)
    if len(where) != num_stages or {*where} != {*range(ranks)}:
        raise ConfigError(
            f"{num_stages} stages are placed on ranks {where}, and the pipeline has {ranks} ranks: "
            f"each stage needs a rank, and each rank a stage"
        )
    return where


def _text(plan: Plan, num_microbatches: int) -> str:
    table = "auto" if plan.table is None else plan.table.name
    rows = "" if plan.table is None else str(plan.table.rows)
    models = [line for module in plan.modules for line in _parameters(module)]
    frameworks = {framework_of_model(module).name for module in plan.modules}
    return (
        f"{num_microbatches} microbatches, {len(plan.modules)} stages of {', '.join(frameworks)} "
        f"on ranks {plan.placement}, schedule {table} ({batches.digest(rows):x}), "
        f"parameters {batches.digest(str(models)):x}"
    )


def _parameters(module: Module) -> list[str]:
    """Describe parameters by their whole shapes, because ranks may have different parts."""
    shapes = {key: layout.shape for key, layout in layouts_by_id(module).items()}
    return [
        f"{name} {shapes.get(id(each), tuple(each.shape))} {kind_of(each)[0]}"
        for name, each in trained_parameters(module)
    ]


def part_of(plan: Plan, group: ProcessGroup) -> tuple[dict[int, Any], Any, Lanes | None, Sharing]:
    """Take this rank's stages, and share tied parameters with other ranks.

    Returns the stages by number, the module with all of them, which gets to know which ranks have
    the rest, the lanes between the ranks, and what shares the parameters.
    """
    own = {n: m for n, m in enumerate(plan.modules) if plan.placement[n] == group.rank}
    module = merged(own, plan.modules)
    tied = shared(plan.modules, plan.placement)
    ranks = [each.ranks for each in tied]
    lanes = lanes_of(group, plan.modules, ranks, plan.placement)
    sharing = Sharing(group, lanes, tied, module)
    sharing.send_values()
    each: Any  # modules have other attributes too
    for each in own.values():
        each.stage_ranks = StageRanks(group, len(own) == 1, sharing.earlier(each))
    module.stage_ranks = StageRanks(group, True, sharing.earlier(module))
    return own, module, lanes, sharing


def check_split(name: str, can_split: bool) -> None:
    """Raise ConfigError for a table that has weight gradients later, where they cannot come so."""
    if not can_split:
        raise ConfigError(
            f"{name} has weight gradients later, and what wrap() made of stages reduces them in "
            f"backward passes: wrap with DistributedDataParallel or FullyShardedDataParallel, or "
            f"choose a schedule of whole backward passes"
        )
