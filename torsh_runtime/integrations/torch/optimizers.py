"""Lets optimizers step on parameters of which ranks have parts, or refuses their first step.

An optimizer that computes elementwise steps on parts. For others single ranks own whole parameters,
where a wrapper can arrange that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torsh_runtime.comm.agreement import agree_in_turn
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import framework_of
from torsh_runtime.framework.parts import Marks
from torsh_runtime.integrations.torch.alike import Alike
from torsh_runtime.integrations.torch.distributed_state import correct_state
from torsh_runtime.integrations.torch.marks import groups_of, marked, marks_of
from torsh_runtime.integrations.torch.optimizer_copies import STEPS
from torsh_runtime.integrations.torch.perturbing import watch_first_steps
from torsh_runtime.integrations.torch.trial import Stepped, trial, trial_of_each

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

_ADVICE = (
    "Use an elementwise optimizer, such as SGD, Adam or AdamW, or tr.DistributedDataParallel, with "
    "which ranks have whole parameters"
)


def watch_steps() -> None:
    """Look at each optimizer's steps from now on."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    watch_first_steps(_before_first_step)


def settle(optimizer: Any) -> None:
    """Decide how an optimizer can step on its parameters. All ranks call it.

    Raises ConfigError on all ranks if it cannot.
    """
    _steps_of(optimizer).settle(optimizer, _needs_closure(optimizer))


def check_spread(optimizer: Any, wrapper: str) -> None:
    """Raise ConfigError if an optimizer goes wrong where each rank steps some of its parameters."""
    if type(optimizer) in _ELEMENTWISE:
        return
    found = trial_of_each(optimizer, {}, _needs_closure(optimizer))
    if not found.is_certain:  # it may take a closure, and need one
        found = trial_of_each(optimizer, {}, True)
    if found.reason:
        raise ConfigError(
            f"{wrapper}: each rank steps some parameters, and {_name_of(optimizer)} needs all: "
            f"{found.reason}. Use it without {wrapper}, so that each rank steps all parameters"
        )


def needs_ranks(optimizer: Any) -> bool:
    """Return whether settling how an optimizer can step on parts takes other ranks."""
    return isinstance(optimizer, torch.optim.Optimizer) and type(optimizer) not in _ELEMENTWISE


def _steps_of(optimizer: Any) -> _Steps:
    found: _Steps = vars(optimizer).setdefault(STEPS, _Steps())
    return found


def _before_step(optimizer: Any, given: Any, named: Any) -> Any:
    steps = _steps_of(optimizer)
    steps.begin(optimizer, bool(given[1:] or named))
    return steps.with_closure(optimizer, given, named)


def _before_first_step(optimizer: Any) -> None:
    _steps_of(optimizer).settle(optimizer, True)


def _after_step(optimizer: Any, given: Any, named: Any) -> None:
    _steps_of(optimizer).end()


def _needs_closure(optimizer: Any) -> bool:
    """Return whether step() cannot be called without arguments."""
    parameters = signature(type(optimizer).step).parameters.values()
    required = [each for each in parameters if each.default is Parameter.empty]
    return sum(each.kind is Parameter.POSITIONAL_OR_KEYWORD for each in required) > 1


class _Steps:
    """Follows the steps of one optimizer.

    Gradients of parameters that ranks have alike are compared in the first step. As long as they
    are zero, the second, fourth, eighth step and so on compare them again.
    """

    def __init__(self) -> None:
        self._steps, self._due = 0, 1
        self._alike: Alike | None = None
        self._settled: frozenset[int] = frozenset()
        """Parameters that have been looked at, by id()."""
        self._has_owners = False
        self._hidden: list[tuple[Any, Any]] = []

    def settle(self, optimizer: Any, has_closure: bool) -> None:
        """Let ranks own whole parameters if the optimizer needs them.

        Raises ConfigError on all ranks if it would go wrong even so.
        """
        parts = {id(each): (each, marks) for each, marks in marked(optimizer) if marks.parts}
        if parts.keys() <= self._settled:
            return
        if type(optimizer) in _ELEMENTWISE:
            _check_state(optimizer)
        else:
            self._has_owners |= _arrange(optimizer, parts, self._settled, has_closure)
        self._settled |= parts.keys()

    def begin(self, optimizer: Any, has_closure: bool) -> None:
        """Begin a step. Raises ConfigError on all ranks if it would go wrong."""
        self.end()  # the last step, if an exception has broken it off
        self.settle(optimizer, has_closure)
        self._steps += 1
        if self._steps == self._due:
            self._check(optimizer)
        self._hide(optimizer)

    def with_closure(self, optimizer: Any, given: Any, named: Any) -> Any:
        """Return a step's arguments, with a closure after which empty parts are hidden again; None
        if nothing is hidden."""
        closure = named.get("closure", given[1] if len(given) > 1 else None)
        if closure is None or not self._has_owners:
            return None

        def call() -> Any:
            self.end()
            found = closure()
            self._hide(optimizer)
            return found

        if "closure" in named:
            return given, {**named, "closure": call}
        return (given[0], call, *given[2:]), named

    def end(self) -> None:
        """End a step."""
        for parameter, gradient in self._hidden:
            framework_of(parameter).set_gradient(parameter, gradient)
        self._hidden.clear()

    def _check(self, optimizer: Any) -> None:
        self._due *= 2
        correct_state(marks_of)
        if self._alike is None:
            same = ((each, marks.same) for each, marks in marked(optimizer))
            self._alike = Alike([(each, found) for each, found in same if found])
        if self._alike.check():
            self._due = 0

    def _hide(self, optimizer: Any) -> None:
        """Let the optimizer skip parameters that other ranks own: some cannot step on empty
        tensors."""
        for each, marks in marked(optimizer) if self._has_owners else ():
            if marks.parts and each.grad is not None and not each.numel():
                self._hidden.append((each, each.grad.data))
                each.grad = None


Parts = Mapping[int, tuple[Any, Marks]]


def _arrange(optimizer: Any, parts: Parts, settled: Set[int], has_closure: bool) -> bool:
    """Let single ranks own whole parameters, unless the optimizer computes elementwise. Return
    whether they do.

    parts: the parameters of which ranks have parts, and their marks, by id().
    settled: those that were looked at before, which ranks may own already.
    """
    groups = groups_of(marks for _, marks in parts.values())
    found = trial(optimizer, {key: marks for key, (_, marks) in parts.items()}, has_closure)
    if not _is_so_anywhere(groups, not (found.is_elementwise and found.is_certain)):
        return False
    left = {key: _without_owned(marks) for key, (_, marks) in parts.items()}
    owned = trial_of_each(optimizer, left, has_closure)
    problem = _problem(optimizer, owned, parts) or _of_parts(
        optimizer, {key: each for key, each in parts.items() if key not in settled}
    )
    agree_in_turn(
        dict.fromkeys(groups, ""), "the optimizer's step", ConfigError(problem) if problem else None
    )
    moved: dict[Callable[[Sequence[Any]], None], list[Any]] = {}
    for parameter, marks in parts.values():
        for own in (part.own for part in marks.parts if part.own is not None):
            moved.setdefault(own, []).append(parameter)
    for own, parameters in moved.items():
        own(parameters)
    return bool(moved)


def _is_so_anywhere(groups: Sequence[ProcessGroup], is_so: bool) -> bool:
    """Return whether something is so on any rank of these groups."""
    for group in groups:
        is_so = bool(group.all_gather_numbers(np.array([is_so], np.int64)).any())
    return is_so


def _without_owned(marks: Marks) -> Marks:
    """Return the marks that are left when single ranks own the parameter within a wrapper."""
    found = Marks(marks.ndim)
    found.parts = [part for part in marks.parts if part.own is None]
    return found


def _check_state(optimizer: Any) -> None:
    """Raise ConfigError for state of whole parameters, which all ranks have alike."""
    for parameter, marks in marked(optimizer):
        for key, kept in optimizer.state.get(parameter, {}).items():
            shape = getattr(kept, "shape", ())
            if len(shape) == parameter.dim() > 0 and shape != parameter.shape and marks.parts:
                raise ConfigError(
                    f"the optimizer has {key!r} of shape {tuple(shape)} for "
                    f"{marks.parts[0].name!r}, of which this rank has a part of shape "
                    f"{tuple(parameter.shape)}: cut the model before the optimizer's first step, "
                    f"and read what was trained before with a tr.checkpoint.Checkpointer"
                )


def _of_parts(optimizer: Any, parts: Parts) -> str:
    """Return what is wrong if an optimizer has state of parts that are to become whole."""
    kept = [(marks, optimizer.state.get(each, {})) for each, marks in parts.values()]
    found = [
        (key, marks.parts[0].name)
        for marks, state in kept
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and value.dim()
    ]
    if not found:
        return ""
    return (
        f"{_name_of(optimizer)} needs whole parameters, and has made {found[0][0]!r} for a part of "
        f"{found[0][1]!r} before its first step. {_ADVICE}"
    )


def _problem(optimizer: Any, found: Stepped, parts: Parts) -> str:
    if not found.reason:
        return ""
    name = next(iter(parts.values()))[1].parts[0].name
    known = "does not compute elementwise" if found.is_certain else "cannot be tried"
    return (
        f"{_name_of(optimizer)} {known}, and each rank has a part of parameters such as {name!r}: "
        f"{found.reason}. {_ADVICE}"
    )


def _name_of(optimizer: Any) -> str:
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"
