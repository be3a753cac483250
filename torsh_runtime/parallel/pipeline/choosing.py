"""Chooses the best of the published tables for given costs of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.pipeline import builders
from torsh_runtime.parallel.pipeline.simulation import Costs, simulate
from torsh_runtime.parallel.pipeline.table import Table

AHEAD = 3
"""Largest number of additional forward passes ahead that is tried."""


def candidates(placement: Sequence[int], num_microbatches: int, splits: bool) -> Iterator[Table]:
    """Yield the tables that fit stages on these ranks.

    splits: whether backward passes may be in two parts.
    """
    more = [f"{name}+{n}" for name in ("1f1b", "zb-h1") for n in range(1, AHEAD + 1)]
    for name in ("1f1b", "interleaved", "zb-h1", "zbv", *more, "gpipe"):
        if not splits and name.startswith("zb"):
            continue
        try:
            yield builders.named(name, placement, num_microbatches)
        except ConfigError:  # it is for other placements, or numbers of microbatches
            continue


def best_table(
    costs: Costs,
    placement: Sequence[int],
    num_microbatches: int,
    memory_limit: float | None = None,
    splits: bool = True,
) -> Table:
    """Return the table that ends first; of equals the one that holds least, then the first.

    memory_limit: what a rank may hold, in the unit of costs.activation. Raises ConfigError if no
    table keeps to it.
    """
    found = [simulate(table, costs) for table in candidates(placement, num_microbatches, splits)]
    small = [each for each in found if memory_limit is None or max(each.peaks) <= memory_limit]
    if not small:
        least = min((max(each.peaks) for each in found), default=0.0)
        raise ConfigError(
            f"no schedule keeps to memory_limit={memory_limit}: the least that a rank holds is "
            f"{least:g}. Take smaller microbatches, checkpoint=True, or more ranks"
        )
    return min(small, key=lambda each: (round(each.makespan, 9), max(each.peaks))).table


def of_fewer(table: Table, placement: Sequence[int], num_microbatches: int) -> Table:
    """Return a table for a batch that makes fewer microbatches.

    It has the same name if there is such a table for this number; otherwise it is GPipe's.
    """
    try:
        return builders.named(table.name, placement, num_microbatches)
    except ConfigError:
        return builders.gpipe(placement, num_microbatches)
