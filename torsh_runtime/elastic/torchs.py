"""Finds what a training has of torch.distributed, and what of it cannot be recovered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.job_group import JobGroup


def torchs_default() -> JobGroup | None:
    """Return the default group of torch.distributed as one that can recover, or None without one.

    Raises ConfigError if it cannot.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    from torsh_runtime.integrations.torch.recovering import recovering_group

    return recovering_group()


def problem_of_torchs(part: Any, group: ProcessGroup | None) -> str:
    """Return why a model or an optimizer cannot be recovered, if that is due to torch.distributed;
    "" otherwise."""
    if "torch.distributed" not in sys.modules:
        return ""
    if not hasattr(part, "modules"):
        is_cut = _is_from(part, "torch.distributed.optim")
        return "each rank has a part of its state: pass an ordinary optimizer" if is_cut else ""
    if is_torchs(part):
        from torsh_runtime.integrations.torch.fully_sharded import problem_of

        return problem_of(part)
    if any(_is_from(each, "torch.distributed.fsdp") for each in part.modules()):
        return "it is sharded over ranks (FSDP): shard it by torch's fully_shard()"
    if any(_is_from(each, "torch.distributed.tensor") for each in part.parameters()):
        return "its parameters are DTensors: wrap a model of plain ones in DistributedDataParallel"
    return _problem_of_replicas(part, group)


def is_torchs(model: Any) -> bool:
    """Return whether torch's fully_shard() has sharded a model, or modules of it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(each, fsdp.FSDPModule) for each in model.modules())


def torchs_shards(models: Mapping[str, Any], optimizers: Mapping[str, Any]) -> Any:
    """Return what protects models that torch's fully_shard() has sharded; None if others have."""
    if not any(is_torchs(each) for each in models.values()):
        return None
    from torsh_runtime.integrations.torch.fully_sharded import TorchShards

    return TorchShards(models, optimizers)


def dropping_kept(model: Any) -> list[Callable[[], None]]:
    """Return what drops gradients that a model that torch's fully_shard() has sharded was to
    average later."""
    if not is_torchs(model):
        return []
    from torsh_runtime.integrations.torch.fully_sharded import drop_kept, states_of

    return [partial(drop_kept, states_of(model))]


def forgotten_of_torchs(models: Sequence[Any]) -> Any:
    """Return a model that torch's fully_shard() has sharded and none of these has, or None."""
    if "torch.distributed.fsdp" not in sys.modules:
        return None
    from torsh_runtime.integrations.torch.fully_sharded import forgotten

    return forgotten(models)


def _problem_of_replicas(model: Any, group: ProcessGroup | None) -> str:
    kind = sys.modules["torch.nn.parallel"].DistributedDataParallel
    for each in model.modules():
        if not isinstance(each, kind):
            continue
        judge = getattr(group, "problem_of", None)
        if judge is None:
            return "it is torch's own, of another group than tr's: use tr.DistributedDataParallel"
        if problem := judge(each):
            return str(problem)
    return ""


def _is_from(thing: object, package: str) -> bool:
    return any(f"{each.__module__}.".startswith(f"{package}.") for each in type(thing).__mro__)
