"""Records which gradients came in a backward pass, for ranks to compare, and what cannot work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from torsh_runtime.comm.agreement import agree, texts_of_all
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import CommError, ConfigError, GradientError
from torsh_runtime.framework.models import has_hook_of_program
from torsh_runtime.framework.trees import leaves

if TYPE_CHECKING:
    from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup

SAME_PARAMETERS = (
    "each rank has to use the same parameters of a sharded model, in the same order (an expert "
    "without tokens on a rank is called there with an empty batch)"
)
OTHER_CALL = (
    "Another rank may have called a method of the sharded model that needs the parts of all ranks, "
    "such as state_dict(): call those on all ranks"
)


@contextmanager
def called_by_all(group: ProcessGroup, what: str) -> Iterator[None]:
    """Let all ranks agree that they call a method, and say in errors of communication, within the
    block, too, that all have to."""
    try:
        agree(group, f"{what} of a sharded model")
        yield
    except CommError as error:
        error.add_note(
            f"{what} of a sharded model needs the parts of all ranks: call it on all of them, also "
            f"where one rank alone uses the result, as `state = model.state_dict()` before "
            f"`if rank == 0:`"
        )
        raise


class Record:
    """Records one backward pass on this rank."""

    def __init__(self) -> None:
        self._order: list[tuple[int, ...]] = []
        self._came: set[tuple[int, int]] = set()

    def note(self, unit: int, number: int) -> None:
        """Note that this gradient was reduced."""
        self._order.append((unit, number))

    def note_all(self, unit: int, numbers: Sequence[int]) -> None:
        """Note that a unit's gradients have come, and were or are reduced together."""
        self._order.append((unit, -1, *numbers))
        self._came |= {(unit, number) for number in numbers}

    def check_same(self, names: Sequence[Sequence[str]], group: ProcessGroup) -> None:
        """Raise GradientError on all ranks if their records differ. names: the names of each
        unit's parameters. Blocks, as a barrier does."""
        if group.world_size == 1:
            return
        own = hash(tuple(self._order))  # of integers: the same in all processes
        if len({*group.all_gather_numbers(np.array([own], np.int64))[:, 0].tolist()}) == 1:
            return
        texts = texts_of_all(group, self._without(names))
        raise GradientError(dict(enumerate(texts)))

    def check_finite(self, is_finite: bool, group: ProcessGroup) -> None:
        """Raise GradientError on all ranks if `is_finite` is false on any. Blocks."""
        told = group.all_gather_numbers(np.array([is_finite], np.int64))[:, 0].tolist()
        text = "the averages of its part of the gradients are not finite"
        if not all(told):
            raise GradientError({rank: text for rank, fine in enumerate(told) if not fine})

    def _without(self, names: Sequence[Sequence[str]]) -> str:
        missing = [
            name
            for unit, each in enumerate(names)
            for number, name in enumerate(each)
            if (unit, number) not in self._came
        ]
        what = f"all but {', '.join(map(repr, missing[:5]))}" if missing else "all"
        return f"gradients came of {what}: {SAME_PARAMETERS}"


def used_by_any(units: Sequence[FSDPParamGroup], groups: Sequence[ProcessGroup]) -> list[list[int]]:
    """Return, for each unit, the numbers of parameters that any rank keeps a gradient of: one of
    the first group, or of those that are in the second one with one of these. All ranks call it
    with the same units."""
    sizes = [len(unit.names()) for unit in units]
    starts = [0, *accumulate(sizes)]
    own = np.zeros(starts[-1], np.int64)
    for start, unit in zip(starts[:-1], units, strict=True):
        own[[start + number for number in unit.kept()]] = 1
    for group in groups:
        own = group.all_gather_numbers(own).max(axis=0)
    return [np.flatnonzero(own[start:end]).tolist() for start, end in pairwise(starts)]


def check_hooks(unit: FSDPParamGroup) -> None:
    """Raise ConfigError if a program wants gradients when they come, which are not averaged
    then."""
    hooked = [name for name, each in unit.named() if has_hook_of_program(each)]
    if hooked:
        raise ConfigError(
            f"a hook of register_post_accumulate_grad_hook() on {hooked[0]!r} would be called "
            f"before gradients are averaged, and find none: call what it does after the backward "
            f"pass"
        )


def check_outputs(unit: FSDPParamGroup, outputs: object) -> None:
    """Raise ConfigError if a unit that ranks have parts of returned tensors in an object that is
    not searched. It would not be noticed that a backward pass begins at them, so the parameters
    would not be gathered for it."""
    if unit.is_replicated or not unit.laid:
        return
    found = [*leaves(outputs)]
    if any(map(_wants_gradient, found)):
        return
    for each in found:
        if any(map(_wants_gradient, getattr(each, "__dict__", {}).values())):
            raise ConfigError(
                f"{unit.name or 'the model'!r} returned a {type(each).__name__}, in which "
                f"FullyShardedDataParallel does not look for tensors: return those that losses are "
                f"made of in lists, tuples, dicts or dataclasses"
            )


def _wants_gradient(value: object) -> bool:
    return getattr(value, "requires_grad", None) is True
