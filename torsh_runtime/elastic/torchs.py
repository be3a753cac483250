"""Finds what a training has of torch.distributed, and what of it cannot be recovered."""

from __future__ import annotations

import sys
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
    if any(_is_from(each, "torch.distributed.fsdp") for each in part.modules()):
        return "it is sharded over ranks (FSDP): wrap it in DistributedDataParallel"
    if any(_is_from(each, "torch.distributed.tensor") for each in part.parameters()):
        return "its parameters are DTensors: wrap a model of plain ones in DistributedDataParallel"
    return _problem_of_replicas(part, group)


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
