"""Corrects torch's own functions on parameters of which each rank has a part, or refuses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from inspect import signature
from typing import Any

import torch

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.parts import Marks, Part, Same
from torsh_runtime.integrations.torch.clipping import watch_clipping
from torsh_runtime.integrations.torch.distributed_state import correct_state
from torsh_runtime.integrations.torch.marks import ATTRIBUTE, groups_of, marked, marks_of
from torsh_runtime.integrations.torch.optimizers import watch_steps


def mark(parameter: Any, mark: Part | Same) -> None:
    """Mark the parameter, and make torch's functions respect such marks."""
    _watch_torch()
    correct_state(marks_of)
    marks = marks_of(parameter)
    if marks is None:
        marks = Marks(parameter.dim())
        setattr(parameter, ATTRIBUTE, marks)
    if isinstance(mark, Part):  # a wrapper around another one marks its parameters again
        same = [each for each in marks.parts if (each.group, each.dim) == (mark.group, mark.dim)]
        marks.parts = [each for each in marks.parts if each not in same] + [mark]
    else:
        marks.same.append(mark)


@cache
def _watch_torch() -> None:
    watch_steps()
    scaler: Any = torch.amp.GradScaler
    scaler._unscale_grads_ = _unscaling(scaler._unscale_grads_)
    watch_clipping()
    replicas: Any = torch.nn.parallel.DistributedDataParallel
    replicas.__init__ = _replicating(replicas.__init__)


def _replicating(theirs: Callable[..., None]) -> Callable[..., None]:
    names = signature(theirs)

    @wraps(theirs)
    def wrap(self: Any, module: Any, *given: Any, **named: Any) -> None:
        """Call torch's own. Raises ConfigError if it would average ranks with different parts."""
        told = names.bind(self, module, *given, **named).arguments
        marked = [marks for marks in map(marks_of, module.parameters()) if marks is not None]
        for part in (part for marks in marked for part in marks.parts):
            ranks = {*part.group.ranks} & _ranks_of(part, told)
            if len(ranks) > 1:
                raise ConfigError(
                    f"torch's DistributedDataParallel would average {part.name!r}, of which ranks "
                    f"{', '.join(map(str, sorted(ranks)))} have different parts: use "
                    f"tr.DistributedDataParallel(model, process_group=mesh['dp']), which averages "
                    f"over those that have the same"
                )
        theirs(self, module, *given, **named)

    return wrap


def _ranks_of(part: Part, told: Mapping[str, Any]) -> set[int]:
    """Return the ranks over which torch averages: all, unless a group is given."""
    group, mesh = told.get("process_group"), told.get("device_mesh")
    if mesh is not None:
        group = mesh.get_group()
    if group is None:
        return {*part.group.ranks}
    return {*torch.distributed.get_process_group_ranks(group)}


def _unscaling(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def unscale(scaler: Any, optimizer: Any, *given: Any, **named: Any) -> Any:
        """Call torch's own, and share what is not finite with all ranks that have parts."""
        found = theirs(scaler, optimizer, *given, **named)
        for group in groups_of(marks for _, marks in marked(optimizer)):
            for each in found.values():
                group.all_reduce(each, ReduceOp.MAX)
        return found

    return unscale
