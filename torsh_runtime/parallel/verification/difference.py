"""What is found to differ, in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["mask", "activation", "loss", "output's gradient", "parameter", "gradient", "norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that is not what one process has."""

    kind: Kind
    name: str
    """Of the module or parameter, as in the model that is not spread."""
    rank: int
    """A rank that has it, in the mesh's group."""
    coordinate: str
    """Where that rank stands: "dp 0, tp 1"."""
    text: str
    """What it has, and what one process has."""
    why: str = ""
    """What that looks like; "" is unknown."""

    def __str__(self) -> str:
        what = f"the {self.kind} of {self.name!r}" if self.name else f"the {self.kind}"
        why = f": {self.why}" if self.why else ""
        return f"{what} on rank {self.rank} ({self.coordinate}) {self.text}{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What verify() found, the same on all ranks. True if nothing differs."""

    compared: int
    """How many values were."""
    differences: tuple[Difference, ...] = field(default=())
    """The first of each kind and name, in the order of the computation."""

    def __bool__(self) -> bool:
        return not self.differences

    @property
    def first(self) -> Difference | None:
        """What went wrong first; what follows may come of it."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        if not self.differences:
            return f"{self.compared} values are those of one process"
        more = len(self.differences) - 1
        then = f"; {more} more differ after it" if more else ""
        return f"first, {self.differences[0]}{then}"
