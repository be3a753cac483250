"""Nested lists, tuples, dicts and dataclasses, as models take and return them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def leaves(value: object) -> Iterable[Any]:
    """Give what is within nested lists, tuples, dicts and dataclasses."""
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    if isinstance(value, list | tuple):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def mapped(call: Callable[[Any], Any], value: Any) -> Any:
    """Make a value like this one, of what `call` makes of all within nested lists, tuples and
    dicts."""
    if isinstance(value, dict):  # whose order may be another one on other ranks
        made = {key: mapped(call, value[key]) for key in sorted(value, key=repr)}
        return {key: made[key] for key in value}
    if isinstance(value, list | tuple):
        parts = [mapped(call, each) for each in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return None if value is None else call(value)
