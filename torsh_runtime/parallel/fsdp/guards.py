"""Prevents misuse of a sharded model's modules, and says what to do instead."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.parts import Part
from torsh_runtime.parallel.fsdp.fsdp_state import FSDPState
from torsh_runtime.parallel.parts_of_state import refusing

NO_COPIES = (
    "a FullyShardedDataParallel and its modules are neither copied nor pickled, for a rank has "
    "parts of them only: save state_dict() or use a tr.checkpoint.Checkpointer; for a second model "
    "build it anew and wrap it; for averages of parameters keep copies of those that "
    "model.parameters() has on each rank"
)
_CLIPPING = (
    "model.clip_grad_norm_(max_norm), or tr.clip_grad_norm_(model, max_norm, mesh) on a mesh"
)
_STATE_OF_PARTS = (
    "the state of a module within a FullyShardedDataParallel has this rank's parts of parameters, "
    "which are not to be taken for whole ones: call state_dict() of the wrapper, on all ranks, as "
    "in model.module.save_pretrained(path, state_dict=model.state_dict())"
)


class NoCopies:
    """Makes copying and pickling raise ConfigError. Each unit's module holds one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise ConfigError(NO_COPIES)

    def __reduce__(self) -> NoReturn:
        raise ConfigError(NO_COPIES)


def guard(model: Module, passes: FSDPState) -> None:
    """Refuse what would take parts of parameters for whole ones."""
    framework, here = framework_of(model), weakref.ref(passes)  # which hooks do not keep alive

    def is_whole() -> bool:
        found = here()
        return found is not None and found.is_outermost_summoned()

    for unit in passes.units:
        for flat, memory in unit.laid:
            if not unit.is_replicated and memory.group.world_size > 1:
                for name, each in zip(flat.names, flat.parameters, strict=True):
                    framework.mark(each, Part(name, memory.group, None, _CLIPPING))
        vars(unit.module)["_torsh_no_copies"] = NoCopies()
        if not unit.is_replicated:
            framework.on_state_dict(unit.module, refusing(_STATE_OF_PARTS, is_whole))
