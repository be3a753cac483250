"""Corrects torch's own functions on parameters of which each rank has a part, or refuses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.agreement import agree_in_turn
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.parts import Marks, Part, Same
from torsh_runtime.integrations.torch.alike import Alike
from torsh_runtime.integrations.torch.clipping import correct_clipping
from torsh_runtime.integrations.torch.distributed_state import correct_state
from torsh_runtime.integrations.torch.trial import Stepped, trial

_MARKS = "_torsh_marks"
_ELEMENTWISE = frozenset(
    getattr(torch.optim, name)
    for name in (
        "ASGD",
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
        "SparseAdam",
    )
)


def mark(parameter: Any, mark: Part | Same) -> None:
    """Mark the parameter, and make torch's functions respect such marks."""
    _watch_torch()
    correct_state(marks_of)
    marks = marks_of(parameter)
    if marks is None:
        marks = Marks(parameter.dim())
        setattr(parameter, _MARKS, marks)
    if isinstance(mark, Part):
        marks.parts.append(mark)
    else:
        marks.same.append(mark)


def marks_of(parameter: Any) -> Marks | None:
    """Return the marks of a parameter, or None."""
    return getattr(parameter, _MARKS, None) or None


@cache
def _watch_torch() -> None:
    checked: WeakKeyDictionary[Any, _Checked] = WeakKeyDictionary()

    def before_step(optimizer: Any, given: Any, named: Any) -> None:
        known = checked.get(optimizer)
        if known is None:
            known = _Checked()
            checked[optimizer] = known
        known.count_step(optimizer, bool(given[1:] or named))

    register_optimizer_step_pre_hook(before_step)
    scaler: Any = torch.amp.GradScaler
    scaler._unscale_grads_ = _unscaling(scaler._unscale_grads_)
    correct_clipping(marks_of)
    replicas: Any = torch.nn.parallel.DistributedDataParallel
    replicas.__init__ = _replicating(replicas.__init__)


class _Checked:
    """Checks an optimizer in its first step.

    As long as gradients are zero, it repeats the check in the second, fourth, eighth step and so
    on.
    """

    def __init__(self) -> None:
        self._steps, self._due = 0, 1
        self._alike: Alike | None = None
        self._is_judged = False

    def count_step(self, optimizer: Any, has_closure: bool) -> None:
        """Count a step that is about to start.

        Raises ConfigError on all ranks if the step would go wrong.
        """
        self._steps += 1
        if self._steps != self._due:
            return
        self._due *= 2
        correct_state(marks_of)
        if not self._is_judged:
            _check_elementwise(optimizer, has_closure)
            same = ((each, marks.same) for each, marks in _marked(optimizer))
            self._alike = Alike([(each, found) for each, found in same if found])
            self._is_judged = True
        if self._alike is not None and self._alike.check():
            self._due = 0


def _marked(optimizer: Any) -> list[tuple[Any, Marks]]:
    return [
        (each, marks)
        for group in getattr(optimizer, "all_param_groups", optimizer.param_groups)
        for each in group["params"]
        if (marks := marks_of(each)) is not None
    ]


def _groups(marked: Iterable[Marks]) -> list[ProcessGroup]:
    """Return the groups whose ranks have the other parts, in an order that all ranks share."""
    return [*dict.fromkeys(part.group for marks in marked for part in marks.parts)]


def _check_elementwise(optimizer: Any, has_closure: bool) -> None:
    """Raise ConfigError on all ranks for an optimizer that treats parts unlike whole parameters."""
    marked = {id(each): marks for each, marks in _marked(optimizer) if marks.parts}
    if not marked:
        return
    if type(optimizer) in _ELEMENTWISE:
        _check_state(optimizer)
        return
    problem = _problem(
        optimizer, trial(optimizer, marked, has_closure), next(iter(marked.values()))
    )
    error = ConfigError(problem) if problem else None
    agree_in_turn(dict.fromkeys(_groups(marked.values()), ""), "the optimizer's step", error)


def _check_state(optimizer: Any) -> None:
    """Raise ConfigError for state of whole parameters, which all ranks have alike."""
    for parameter, marks in _marked(optimizer):
        for key, kept in optimizer.state.get(parameter, {}).items():
            shape = getattr(kept, "shape", ())
            if len(shape) == parameter.dim() > 0 and shape != parameter.shape and marks.parts:
                raise ConfigError(
                    f"the optimizer has {key!r} of shape {tuple(shape)} for "
                    f"{marks.parts[0].name!r}, of which this rank has a part of shape "
                    f"{tuple(parameter.shape)}: cut the model before the optimizer's first step, "
                    f"and read what was trained before with a tr.checkpoint.Checkpointer"
                )


def _problem(optimizer: Any, found: Stepped, marks: Marks) -> str:
    if found.is_elementwise:
        return ""
    kind, name = type(optimizer), marks.parts[0].name
    return (
        f"{kind.__module__}.{kind.__qualname__} does not compute elementwise, and each rank has a "
        f"part of parameters such as {name!r}: {found.reason}. Use an elementwise optimizer, such "
        f"as SGD, Adam or AdamW, or tr.DistributedDataParallel, with which ranks have whole "
        f"parameters"
    )


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
        for group in _groups(marks for _, marks in _marked(optimizer)):
            for each in found.values():
                group.all_reduce(each, ReduceOp.MAX)
        return found

    return unscale
