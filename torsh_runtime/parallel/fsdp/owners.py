"""Chooses the ranks that own whole parameters.

An optimizer that does not compute elementwise, such as Muon, needs all of a matrix.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence, Set

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup


def owners_of(units: Sequence[FSDPParamGroup], wanted: Set[int]) -> dict[int, int]:
    """Return the rank in its group that is to own each parameter, by the parameter's id().

    The largest parameters get their owners first, and each goes to the rank that owns the fewest
    elements. wanted: id() of the parameters.
    """
    loads: dict[ProcessGroup, Counter[int]] = defaultdict(Counter)
    left: list[tuple[int, int, ProcessGroup]] = []
    for flat, memory in (each for unit in units if not unit.is_replicated for each in unit.laid):
        if flat.is_owned:
            for start, size in zip(flat.starts, flat.sizes, strict=True):
                loads[memory.group][bisect_right(flat.cuts, start) - 1] += size
        else:
            left += [
                (size, id(parameter), memory.group)
                for size, parameter in zip(flat.sizes, flat.parameters, strict=True)
                if id(parameter) in wanted
            ]
    owners: dict[int, int] = {}
    for size, key, group in sorted(left, key=lambda each: -each[0]):
        load = loads[group]
        owners[key] = min(range(group.world_size), key=lambda rank: (load[rank], rank))
        load[owners[key]] += size
    return owners
