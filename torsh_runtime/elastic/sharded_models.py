"""Tells which models of a training are sharded, and which of these cannot be recovered."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.elastic.own_shards import passes_of
from torsh_runtime.elastic.torchs import is_torchs
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.fsdp.config import ShardingStrategy
from torsh_runtime.parallel.fsdp.fsdp_init import has_host_memory
from torsh_runtime.parallel.fsdp.node_storage import groups_of_nodes, is_by_agents
from torsh_runtime.parallel.fsdp.sharding import shardings_of, shardings_over
from torsh_runtime.parallel.layouts import layouts_by_id
from torsh_runtime.parallel.state.models import is_model
from torsh_runtime.parallel.state.optimizers import is_optimizer


def sharded_in(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the models of which ranks have parts and their optimizers, by name.

    Ranks have other models alike, such as a small discriminator or a moving average. An optimizer
    of models of both kinds brings all of its models with it, as its state has their names.
    """
    models = {name: each for name, each in named.items() if is_model(each)}
    optimizers = {name: each for name, each in named.items() if is_optimizer(each)}
    found = {name: each for name, each in models.items() if is_sharded(each)}
    size = -1
    while len(found) != size:
        size = len(found)
        for name, optimizer in optimizers.items():
            groups = optimizer.param_groups
            stepped = {id(each) for group in groups for each in group["params"]}
            of_it = {n: each for n, each in models.items() if not stepped.isdisjoint(_ids(each))}
            if found.keys() & of_it.keys():
                found |= {**of_it, name: optimizer}
    return found


def is_sharded(model: Any) -> bool:
    """Return whether ranks have parts of this model, by this library or by torch."""
    return bool(shardings_of(model)) or is_torchs(model)


def check_one_kind(models: Iterable[Any]) -> None:
    """Raise ConfigError if models are sharded by this library, and others by torch."""
    kinds = {is_torchs(each) for each in models if is_sharded(each)}
    if len(kinds) > 1:
        raise ConfigError(
            "tr.elastic.join() was given models that tr has sharded, and others that torch's "
            "fully_shard() has: use one of the two for all"
        )


def _ids(model: Any) -> set[int]:
    return {id(parameter) for _, parameter in model.named_parameters()}


def problem_of_sharded(model: Any, group: ProcessGroup | None) -> str:
    """Return why a sharded model cannot be recovered; "" if it can."""
    if layouts_by_id(model):
        return "it has layouts on a mesh as well"
    for each in shardings_of(model):
        is_hybrid = each.config.sharding_strategy is ShardingStrategy.HYBRID_SHARD
        if is_hybrid and group is not None and not is_by_agents(group, each.group):
            return (
                'its sharding_strategy is "hybrid", over other groups than the ranks of each agent '
                "of torshrun: leave process_group and mesh out, and start one agent on each host"
            )
        if not is_hybrid and each.group is not group:
            return "it is not sharded over the default group: leave process_group and mesh out"
        if each.config.offloads or each.config.activation_offload:
            return "it is offloaded to the memory of the CPU: leave that out"
        if not all(has_host_memory(parameter) for u in each.units for parameter in u.parameters):
            return "it is on a GPU"
        if any(flat.is_owned for unit in each.units for flat, _ in unit.laid):
            return "its optimizer does not compute elementwise, and single ranks own parameters"
    return ""


def forgotten(models: Iterable[Any], group: ProcessGroup | None) -> Any:
    """Return a model that is sharded over the group and none of these or within one; None if there
    is no such model."""
    known = passes_of(models)

    def found() -> Any:
        groups = [] if group is None else [group, *groups_of_nodes(group)]
        live = [each for found in groups for each in shardings_over(found)]
        return next((each.model for each in live if each.outermost not in known), None)

    if found() is not None:
        gc.collect()  # it may be gone, and only its cycles be left
    return found()


def problem_of_stepping(optimizer: Any) -> str:
    """Return why an optimizer of sharded models cannot be recovered; "" if it can."""
    torchs = sys.modules.get("torsh_runtime.integrations.torch.optimizers")
    if torchs is None or not torchs.needs_ranks(optimizer):
        return ""
    return (
        f"{type(optimizer).__name__} is none of torch's optimizers that compute elementwise, as "
        f"AdamW and SGD, and needs other ranks in its first step"
    )
