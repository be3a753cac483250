"""What ranks agree on before a pipeline is made."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torsh_runtime.comm.agreement import by_rank
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError, disagreement
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.models import kind_of, trained_parameters
from torsh_runtime.parallel.agreement import texts_of_all
from torsh_runtime.parallel.layouts import layouts_by_id
from torsh_runtime.parallel.pipeline import batches, builders
from torsh_runtime.parallel.pipeline.autograd import autograd_of
from torsh_runtime.parallel.pipeline.files import load_table
from torsh_runtime.parallel.pipeline.measuring import unchanged
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


class Plan(NamedTuple):
    """Of one pipeline."""

    modules: list[Any]
    """All stages."""
    placement: tuple[int, ...]
    table: Table | None
    """None: it is chosen when costs have been measured."""


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
    """As PipelineParallel's arguments say. ConfigError on all ranks of `everyone`, who are those of
    the mesh that the pipeline is of, if one has a problem, or if their plans differ."""
    if isinstance(schedule, Path):
        schedule = str(schedule)
    if isinstance(cuts, str):
        cuts = [cuts]
    study = None if cuts is None else _study(everyone, stages, example)
    if cuts is not None and study is None:
        _check_chain(everyone, stages, example)
    if isinstance(cuts, int):
        cuts = _measured_cuts(everyone, stages, cuts, example, study)

    def plan() -> Plan:
        count, most = num_microbatches, batches.MOST - 1  # so many steps are built below
        if not hasattr(count, "__index__") or not 1 <= count <= most:
            raise ConfigError(f"num_microbatches={count!r}: a whole number from 1 to {most}")
        modules = _modules(stages, cuts) if study is None else study.stages(cuts)
        table = _table(schedule)
        where = _placement(schedule, table, placement, len(modules), group.world_size)
        if table is None and schedule != "auto":
            table = builders.named(str(schedule), where, num_microbatches)
        if table is not None:
            check(table, len(modules), num_microbatches, where)
            if not table.trains:
                raise ConfigError(f"{table.name} has no backward passes: it does not train")
            table = table.with_reductions()
            simulate(table)
        return Plan(modules, where, table)

    made: Plan = agreed(everyone, plan, lambda made: _text(made, num_microbatches))
    return made


def agreed(group: ProcessGroup, make: Callable[[], Any], text: Callable[[Any], str]) -> Any:
    """What make() returns. ConfigError on all ranks if it raises one on any, or if the texts of
    what it returned differ."""
    made, problem, own, cause = None, "", "", None
    try:
        made = make()
        own = text(made)
    except Exception as error:  # the others would wait for this rank
        kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        problem, cause = f"{kind}{error}", error
    told = _told(group, [problem, own])
    problems = {said: rank for rank, (said, _) in reversed([*enumerate(told)]) if said}
    if problems:
        named = (f"{group.called(rank)}: {said}" for said, rank in problems.items())
        raise ConfigError("; ".join(named)) from cause
    texts = [said for _, said in told]
    if len({*texts}) > 1:
        raise disagreement(
            f"ranks do not have the same pipeline: {by_rank(texts, group)}. Build the same on all",
            dict(enumerate(texts)),
            group.job_ranks,
        )
    return made


def wrapped(
    stages: Mapping[int, Any],
    wrap: Callable[[Any], Any] | None,
    everyone: ProcessGroup,
    data: ProcessGroup | None,
) -> dict[int, Any]:
    """What wrap() makes of a rank's stages. ConfigError on all ranks if it raises on any: ranks of
    other stages would wait, and replicas of the stage in their wrappers."""
    call = wrap or (lambda stage: stage)

    def make() -> Any:
        made: dict[int, Any] = {}
        for number, stage in stages.items():
            _check_unsharded(made, stages, number)
            made[number] = call(stage)
        return made

    def among_replicas() -> Any:
        return make() if data is None else agreed(data, make, lambda _: "")

    made: dict[int, Any] = agreed(everyone, among_replicas, lambda _: "")
    return made


def _check_unsharded(made: Mapping[int, Any], stages: Mapping[int, Any], number: int) -> None:
    """ConfigError if a stage shares a parameter with another one that has been sharded: it would
    have the other's part of it."""
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


def _told(group: ProcessGroup, own: Sequence[str]) -> list[Sequence[str]]:
    """What each rank says. One that is still within make(), where wrappers compare texts too, has
    an error there for this one's, and says its own next. ConfigError if none does for a timeout."""
    deadline = time.monotonic() + group.timeout
    while True:
        told = texts_of_all(group, json.dumps(own))
        try:
            return [json.loads(each) for each in told]
        except ValueError:
            if time.monotonic() < deadline:
                continue
            raise ConfigError(
                f"{group.called(group.rank)}: {own[0]}; other ranks go on in wrap() whatever it "
                f"raises: let wrap() raise what wrappers raise"
            ) from None


def _check_chain(group: ProcessGroup, model: Any, example: Any) -> None:
    """ConfigError on all ranks if the layers of an example's model do not give what it gives; a
    warning where that is not known."""
    if example is None:
        if group.rank == 0 and has_own_forward(model):
            _log.warning(
                "the stages of %s call its layers one after the other, whatever its forward() "
                "does: pass example=, a microbatch, to have that compared, or say by "
                "pipeline_layers() that it is so",
                type(model).__qualname__,
            )
        return

    def compare() -> None:
        autograd = autograd_of(model)
        with autograd.recording(False), unchanged([model], autograd):
            begin_anew = partial(autograd.set_random_state, autograd.random_state())
            check_chain(model, batches.arguments(example), begin_anew)

    agreed(group, compare, lambda _: "")


def _study(group: ProcessGroup, model: Any, example: Any) -> Any | None:
    """What is known of a model whose stages run its own forward(); None for other models."""

    return agreed(
        group,
        lambda: study_of(model, example),
        lambda made: "" if made is None else ", ".join(made.layers),
    )


def _measured_cuts(
    group: ProcessGroup, model: Any, parts: int, example: Any, study: Any | None
) -> list[str]:
    """As rank 0 measured."""

    def measure() -> tuple[list[str], list[float]]:
        if study is not None:
            return [*study.layers], study.costs()
        names = [*layers_of(model)]
        if example is None:
            raise ConfigError(f"cuts={parts}: pass the example of a microbatch to measure layers")
        autograd = autograd_of(model)
        with autograd.recording(False), unchanged([model], autograd):
            return names, measured(model, batches.arguments(example), autograd.synchronise)

    names, costs = agreed(group, measure, lambda made: ", ".join(made[0]))
    costs = json.loads(texts_of_all(group, json.dumps(costs))[0])
    return [names[place] for place in balanced(costs, parts)]


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
    frameworks = {framework_of(module).name for module in plan.modules}
    return (
        f"{num_microbatches} microbatches, {len(plan.modules)} stages of {', '.join(frameworks)} "
        f"on ranks {plan.placement}, schedule {table} ({batches.digest(rows):x}), "
        f"parameters {batches.digest(str(models)):x}"
    )


def _parameters(module: Module) -> list[str]:
    """As they are whole: ranks may have different parts."""
    shapes = {key: layout.shape for key, layout in layouts_by_id(module).items()}
    return [
        f"{name} {shapes.get(id(each), tuple(each.shape))} {kind_of(each)[0]}"
        for name, each in trained_parameters(module)
    ]
