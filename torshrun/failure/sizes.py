"""Finds who called something of a different size, where Gloo only tells how many bytes came. Pure.

A rank that gets more bytes than it has room for aborts. All ranks cut a collective into pieces in
the same way, so what came and the room for it are in the same proportion as what two ranks called.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_CALL = re.compile(r"^(\w+)\((\w+?)(\d{1,3})\[((?:\d{1,18}(?:, ?|(?=\])))*)\]")
_NEAR = 0.02
OTHER = "something of another size"


def what_it_called(came: int, room: int, calls: Mapping[int, str]) -> str:
    """Return which of these calls a rank made that had room for `room` bytes when `came` bytes
    came.

    OTHER if it is none of them; "" where sizes are not known.
    """
    sizes = {call: _bytes(call) for call in calls.values()}
    if not came or not all(sizes.values()):
        return ""
    errors = {
        call: min((_error(came, room, theirs, own) for theirs in sizes.values()), default=math.inf)
        for call, own in sizes.items()
    }
    closest = min(errors, key=errors.__getitem__, default=OTHER)
    return closest if errors.get(closest, math.inf) <= _NEAR else OTHER


def _error(came: int, room: int, theirs: int, own: int) -> float:
    """Return the relative error if a rank with an array of `own` bytes had `room` for `came` bytes
    of an array of `theirs` bytes. More bytes come than there is room for, or fewer, only if the
    sender's array is as much larger or smaller.
    """
    if (came > room) != (theirs > own) or theirs == own:
        return math.inf
    return abs(theirs * room / (came * own) - 1)


def _bytes(call: str) -> int:
    """Return the array's bytes in a call like "all_reduce(float32[3, 4], SUM)"; 0 is unknown."""
    found = _CALL.match(call)
    if not found:
        return 0
    shape = [int(number) for number in found[4].split(",") if number.strip()]
    return math.prod(shape) * int(found[3]) // 8
