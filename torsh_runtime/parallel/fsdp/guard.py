"""Refuses what would take the parts of a sharded model for the whole model."""

from __future__ import annotations

import weakref
from collections.abc import Set
from functools import partial
from typing import Any, NoReturn

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.parts import Part
from torsh_runtime.parallel.fsdp.fsdp_state import FSDPState, weakly
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.parts_of_state import refusing
from torsh_runtime.parallel.replicas import Replicas

WRAPPER = "FullyShardedDataParallel"
FUNCTION = "fully_shard"
_GUARDED = "_torsh_is_guarded"
NO_COPIES = (
    "a model in FullyShardedDataParallel or of fully_shard() is neither copied nor pickled, nor "
    "are its modules, for a rank has parts of them only: save state_dict() or use a "
    "tr.checkpoint.Checkpointer; for a second model build it anew and shard it; for averages of "
    "parameters keep copies of those that model.parameters() has on each rank"
)
_CLIPPING = {
    WRAPPER: (
        "model.clip_grad_norm_(max_norm), or tr.clip_grad_norm_(model, max_norm, mesh) on a mesh"
    ),
    FUNCTION: "tr.clip_grad_norm_(model, max_norm), with mesh=mesh if the model is on a mesh",
}
_STATE_OF_PARTS = {
    WRAPPER: (
        "the state of a module within a FullyShardedDataParallel has this rank's parts of "
        "parameters, which are not to be taken for whole ones: call state_dict() of the wrapper, "
        "on all ranks, as in model.module.save_pretrained(path, state_dict=model.state_dict())"
    ),
    FUNCTION: (
        "the state of a module within one that fully_shard() was given has this rank's parts of "
        "parameters, which are not to be taken for whole ones: call state_dict() of the module "
        "that was given, on all ranks"
    ),
}


class NoCopies:
    """Makes copying and pickling raise ConfigError. Each unit's module holds one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise ConfigError(NO_COPIES)

    def __reduce__(self) -> NoReturn:
        raise ConfigError(NO_COPIES)


def _is_everyone(group: ProcessGroup, copies: Replicas | None) -> bool:
    """Return whether the group, with those that replicate its parts, has all ranks."""
    ranks = group.world_size * (copies.group.world_size if copies is not None else 1)
    try:
        return group_of(None).world_size == ranks
    except ConfigError:  # without a default group that is not known
        return False


def guard(model: Module, passes: FSDPState, copies: Replicas | None, asked_by: str) -> None:
    """Refuse what would take parts of parameters for whole ones. asked_by: the class or function
    that has sharded the model."""
    framework, here = framework_of(model), weakref.ref(passes)  # which hooks do not keep alive

    def is_whole() -> bool:
        found = here()
        return found is not None and found.is_outermost_summoned()

    owner = weakly(passes, FSDPState.own)
    for unit in passes.units:
        for flat, memory in unit.laid:
            if not unit.is_replicated and memory.group.world_size > 1:
                is_everyone = _is_everyone(memory.group, copies)
                clipping = None if is_everyone else _CLIPPING[asked_by]
                for name, each in zip(flat.names, flat.parameters, strict=True):
                    framework.mark(each, Part(name, memory.group, 0, clipping, owner))
        vars(unit.module)["_torsh_no_copies"] = NoCopies()
    parts = {id(each) for u in passes.units if not u.is_replicated for each in u.parameters}
    roots = {id(unit.module) for unit in passes.units if not unit.is_replicated}
    for _, module in model.named_modules():
        own = vars(module)
        has_parts = any(id(each) in parts for _, each in module.named_parameters(recurse=False))
        if (has_parts or id(module) in roots) and _GUARDED not in own:
            own[_GUARDED] = own["_torsh_no_copies"] = NoCopies()
            framework.on_state_dict(module, refusing(_STATE_OF_PARTS[asked_by], is_whole))
    _guard_rows(model, passes, {id(unit.module) for unit in passes.units})


def _guard_rows(model: Module, passes: FSDPState, called: Set[int]) -> None:
    """Refuse calls of embeddings outside of passes, which would look up other rows than meant.
    called: id() of modules whose calls are followed."""
    here = weakref.ref(passes)
    laid = [flat for unit in passes.units for flat, _ in unit.laid]
    rows = {
        id(each): shape[0]
        for flat in laid
        for each, shape in zip(flat.parameters, flat.shapes, strict=True)
        if shape
    }
    for name, module in model.named_modules():
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        if hasattr(module, "num_embeddings") and id(weight) in rows and id(module) not in called:
            check = partial(_check_rows, here, name, rows[id(weight)])
            module.register_forward_pre_hook(check)


def _check_rows(here: Any, name: str, rows: int, module: Any, _: object) -> None:
    own = len(module.weight)
    if own == rows or (passes := here()) is None or passes.outermost().is_in_pass:
        return
    raise ConfigError(
        f"{name!r} was called outside of the model, where this rank has {own} of its {rows} rows: "
        f"call the model or a unit, or the method that calls it after "
        f"tr.register_fsdp_forward_method(model, the method's name) on all ranks"
    )
