"""Plain values of which several ranks tell, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torsh_runtime.parallel.state.plain import KEY, is_number

GROUPS = "param_groups"
"""What an optimizer's plain value has, and nothing else."""
_PIECES = "__pieces__"
"""What the plain value of a parameter's state has that is kept by pieces, and nothing else."""


def of_pieces(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A plain value that is kept by pieces, by their labels."""
    return {_PIECES: {KEY: "pieces", "items": dict(plain)}}


def pieces_in(value: Any) -> dict[str, Any] | None:
    """What is in such a value, by the pieces' labels; None for any other."""
    if not isinstance(value, dict) or value.keys() != {_PIECES}:
        return None
    found: dict[str, Any] = value[_PIECES]["items"]
    return found


def merged_values(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The plain values of all ranks, in their order: of what several have the first one's, but of
    an optimizer the parameters of all, who may be stages of a pipeline, and what is of pieces."""
    merged: dict[str, Any] = {}
    for values in told:
        for name, value in values.items():
            merged[name] = _merged(merged[name], value) if name in merged else value
    return {name: _of_one(value) for name, value in merged.items()}


def _merged(ours: Any, theirs: Any) -> Any:
    if _is_of_optimizer(ours) and _is_of_optimizer(theirs):
        return {GROUPS: _merged_groups(ours[GROUPS], theirs[GROUPS])}
    own, others = pieces_in(ours), pieces_in(theirs)
    return ours if own is None or others is None else of_pieces({**others, **own})


def _of_one(value: Any) -> Any:
    """Numbers that are the same for all pieces are those of the parameter."""
    first, *others = [*(pieces_in(value) or {}).values()] or [None]
    is_same = first is not None and all(each == first for each in others)
    return first if is_same and all(map(is_number, first.values())) else value


def _is_of_optimizer(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {GROUPS} and isinstance(value[GROUPS], list)


def _merged_groups(ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    """Groups of one number and with the same options are one."""
    groups = [*ours]
    for number, their in enumerate(theirs):
        own = groups[number] if number < len(ours) else None
        if own is not None and {**own, "params": ()} == {**their, "params": ()}:
            params = [*dict.fromkeys([*own["params"], *their["params"]])]
            groups[number] = {**own, "params": params}
        else:
            groups.append(their)
    return groups
