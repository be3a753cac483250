"""Defines columns of benchmarks/families.py in which ranks have different batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

import torsh_runtime as tr
from benchmarks.family_models import FAMILIES
from benchmarks.family_training import (
    NORM,
    SENSELESS,
    Trained,
    built,
    compared,
    parameters_of,
    trained,
    whole,
    with_adapters,
)


def replicated(name: str, mesh: Any) -> str:
    """Compare DistributedDataParallel with torch's clip_grad_norm_."""
    replica: Any = tr.DistributedDataParallel(built(FAMILIES[name]), process_group=mesh.get_group())
    losses_and_norms = _trained(
        replica, name, lambda: nn.utils.clip_grad_norm_(replica.parameters(), NORM), mesh
    )
    own = replace(losses_and_norms, parameters=parameters_of(replica.module))
    return compared(own, whole(name, parts=mesh.size()), {}, mesh)


def sharded(name: str, mesh: Any, prepare: Callable[[Any], Any] = lambda model: model) -> str:
    """Compare FullyShardedDataParallel with each layer as a unit.

    prepare: changes the model before.
    """
    model = prepare(built(FAMILIES[name]))
    layers = _layers_of(model)
    names = [each for each, _ in model.named_parameters(remove_duplicate=False)]
    replica: Any = tr.FullyShardedDataParallel(
        model,
        process_group=mesh.get_group(),
        auto_wrap_policy=tr.CustomAutoWrap(lambda module: id(module) in layers),
        min_num_params=0,
    )
    losses_and_norms = _trained(replica, name, lambda: replica.clip_grad_norm_(NORM), mesh)
    state = replica.state_dict()
    own = replace(losses_and_norms, parameters={each: state[each] for each in names})
    reference = whole(name, parts=mesh.size(), adapted=prepare is with_adapters)
    return compared(own, reference, {}, mesh)


def checkpointed(name: str, mesh: Any) -> str:
    """Compare recomputed activations, beneath FullyShardedDataParallel and a plan."""
    if not getattr(built(FAMILIES[name]), "supports_gradient_checkpointing", False):
        return SENSELESS
    return sharded(name, mesh, _with_checkpoints) or parts(name, mesh, _with_checkpoints)


def adapted(name: str, mesh: Any) -> str:
    """Compare low-rank adapters, beneath FullyShardedDataParallel and a plan."""
    return sharded(name, mesh, with_adapters) or parts(name, mesh, with_adapters)


def parts(name: str, mesh: Any, prepare: Callable[[Any], Any]) -> str:
    """Compare parallelize(model, mesh, "auto"). prepare: changes the model before."""
    model = prepare(built(FAMILIES[name]))
    tr.parallelize(model, mesh, "auto")
    own = trained(model, FAMILIES[name], lambda: tr.clip_grad_norm_(model, NORM, mesh))
    reference = whole(name, adapted=prepare is with_adapters)
    return compared(own, reference, tr.layouts_of(model), mesh)


def _with_checkpoints(model: Any) -> Any:
    model.gradient_checkpointing_enable()
    return model


def _layers_of(model: Any) -> set[int]:
    """Return the id() of each layer."""
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    return {id(layer) for each in lists for layer in each.children()}


def _trained(replica: Any, name: str, clip: Callable[[], Any], mesh: Any) -> Trained:
    """Train on this rank's part of batches, and return the mean of all ranks' losses."""
    own = trained(replica, FAMILIES[name], clip, (mesh.get_group().rank,), mesh.size())
    every: list[Any] = [None] * mesh.size()
    tr.all_gather_object(every, own.losses)
    return replace(own, losses=[sum(each) / len(each) for each in zip(*every, strict=True)])
