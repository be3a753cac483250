"""Describes in words what differs, without side effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["mask", "activation", "loss", "output's gradient", "parameter", "gradient", "norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Describes one value that differs from that of one process."""

    kind: Kind
    """The kind of value, such as "gradient"."""
    name: str
    """Name of the module or parameter in the model that is not spread."""
    rank: int
    """A rank that has the difference, in the mesh's group."""
    coordinate: str
    """Coordinate of that rank in the mesh: "dp 0, tp 1"."""
    text: str
    """Value of that rank beside that of one process, in words."""
    why: str = ""
    """Likely cause; "" if it is unknown."""

    def __str__(self) -> str:
        what = f"the {self.kind} of {self.name!r}" if self.name else f"the {self.kind}"
        why = f": {self.why}" if self.why else ""
        return f"{what} on rank {self.rank} ({self.coordinate}) {self.text}{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Holds the result of verify(), the same on all ranks. True if nothing differs.

    Example:
        ```python
        result = tr.verify(model, mesh, plan, batch)
        assert result, str(result)
        ```
    """

    compared: int
    """Number of values that were compared."""
    differences: tuple[Difference, ...] = field(default=())
    """The first difference of each kind and name, in the order of the computation."""

    def __bool__(self) -> bool:
        return not self.differences

    @property
    def first(self) -> Difference | None:
        """Return the first difference, which may have caused those after it."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        if not self.differences:
            return f"{self.compared} values are those of one process"
        more = len(self.differences) - 1
        then = f"; {more} more differ after it" if more else ""
        return f"first, {self.differences[0]}{then}"
