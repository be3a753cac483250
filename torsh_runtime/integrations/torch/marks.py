"""Reads the marks of parameters of which ranks have parts, or the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework.parts import Marks

ATTRIBUTE = "_torsh_marks"


def marks_of(parameter: Any) -> Marks | None:
    """Return the marks of a parameter, or None."""
    return getattr(parameter, ATTRIBUTE, None) or None


def marked(optimizer: Any) -> list[tuple[Any, Marks]]:
    """Return an optimizer's parameters that have marks, and these."""
    return [
        (each, marks)
        for group in getattr(optimizer, "all_param_groups", optimizer.param_groups)
        for each in group["params"]
        if (marks := marks_of(each)) is not None
    ]


def groups_of(marks: Iterable[Marks]) -> list[ProcessGroup]:
    """Return the groups whose ranks have the other parts, in an order that all ranks share."""
    return [*dict.fromkeys(part.group for each in marks for part in each.parts)]
