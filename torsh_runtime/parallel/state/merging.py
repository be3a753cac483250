"""Merges plain values that several ranks have kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torsh_runtime.parallel.state.plain import KEY, is_number

GROUPS = "param_groups"
"""The only key of an optimizer's plain value."""
_PIECES = "__pieces__"
"""The only key of the plain value of a parameter's state that is kept by pieces."""


def of_pieces(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Make a plain value that is kept by pieces from these, which are by label."""
    return {_PIECES: {KEY: "pieces", "items": dict(plain)}}


def pieces_in(value: Any) -> dict[str, Any] | None:
    """Return the pieces in such a value, by label; None for any other value."""
    if not isinstance(value, dict) or value.keys() != {_PIECES}:
        return None
    found: dict[str, Any] = value[_PIECES]["items"]
    return found


def merged_values(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the plain values of all ranks, which are in their order.

    The first rank's value is used where several have it. But the parameters of optimizers are
    joined, because ranks may be stages of a pipeline, and so are pieces.
    """
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
    """Turn pieces whose values are equal numbers into the value of the whole parameter."""
    first, *others = [*(pieces_in(value) or {}).values()] or [None]
    is_same = first is not None and all(each == first for each in others)
    return first if is_same and all(map(is_number, first.values())) else value


def _is_of_optimizer(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {GROUPS} and isinstance(value[GROUPS], list)


def _merged_groups(ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    """Merge groups that have the same number and the same options."""
    groups = [*ours]
    for number, their in enumerate(theirs):
        own = groups[number] if number < len(ours) else None
        if own is not None and {**own, "params": ()} == {**their, "params": ()}:
            params = [*dict.fromkeys([*own["params"], *their["params"]])]
            groups[number] = {**own, "params": params}
        else:
            groups.append(their)
    return groups
