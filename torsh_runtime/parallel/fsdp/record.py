"""Records which gradients came in a backward pass, for ranks to compare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torsh_runtime.comm.agreement import texts_of_all
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import GradientError

SAME_PARAMETERS = (
    "each rank has to use the same parameters of a sharded model, in the same order (an expert "
    "without tokens on a rank is called there with an empty batch)"
)


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
