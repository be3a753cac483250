"""What torshctl's commands do with a run. Each tells in a line what has come of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from torsh_runtime.errors import StoreError
from torshrun import exit_codes
from torshrun.config.values import Nodes
from torshrun.ctl.picture import NotDone, Picture, find_nodes
from torshrun.ctl.progress import check_drain, drained, ended, nodes, scaled, stopped, undone
from torshrun.ctl.run import Run, Say
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import SizeWanted, StopWanted

STOPPED = exit_codes.SIGNALLED + 2
"""The code that all agents of a stopped job end with: as by Ctrl-C on each."""
_STOP_KEPT = 30.0
"""Seconds at least that nodes have to find the request: it is not to meet the name's next run."""
_DRAIN_KEPT = 86400.0
"""Seconds; the ids of nodes never come again."""


async def watch(run: Run, show: Callable[[Picture], None]) -> None:
    """Show each change until the run has ended, or nobody is left to end it."""
    while not run.picture.verdict and (run.picture.present or run.picture.leader):
        show(await run.change())


async def scale(run: Run, asked: str, size: Nodes, timeout: float | None, say: Say) -> str:
    """Give the run another size. With one number, MIN stays if it is no larger."""
    _check_runs(run)
    if any(row.fixed_rank >= 0 for row in run.picture.present):
        raise NotDone(
            f"run {run.picture.run_id} has a fixed number of nodes: each has its --node-rank "
            f"(--rdzv-backend static)"
        )
    is_range = ":" in asked
    least = size.fewest
    if not is_range and run.picture.limits:
        least = min(least, run.picture.limits[0])
    wanted = SizeWanted(min_nodes=least, max_nodes=size.most)
    await run.ask({rows.WANT_SIZE: rows.encode(wanted)})
    return await run.wait(partial(scaled, wanted, size.fewest), timeout, say)


async def drain(
    run: Run, names: Sequence[str], timeout: float | None, say: Say, *, force: bool
) -> str:
    """Ask nodes to go."""
    _check_runs(run)
    before = run.picture
    asked = find_nodes(before, names)
    if not force:
        check_drain(asked, before)
    keys = {rows.WANT_DRAIN + row.node: rows.encode(rows.Wanted()) for row in asked}
    await run.ask(keys, _DRAIN_KEPT)
    told = await run.wait(partial(drained, asked, before), timeout, say)
    if timeout is not None:
        with suppress(StoreError):  # it may have gone with them
            await run.withdraw([*keys])
    return told


async def keep(run: Run, names: Sequence[str]) -> str:
    """Ask nodes no more to go."""
    _check_runs(run)
    asked = find_nodes(run.picture, names)
    await run.withdraw([rows.WANT_DRAIN + row.node for row in asked])
    return undone(asked, await run.now()).text


async def stop(run: Run, reason: str, timeout: float | None, say: Say) -> str:
    """End the run on all nodes."""
    if run.picture.verdict:
        return ended(run.picture)
    _check_runs(run)
    said = f"torshctl stop on {os.uname().nodename}" + (f": {reason}" if reason else "")
    wanted = StopWanted(code=STOPPED, reason=said)
    await run.ask({rows.WANT_STOP: rows.encode(wanted)}, max(timeout or 0.0, _STOP_KEPT))
    try:
        told = await run.wait(stopped, timeout, say)
        if timeout is not None:
            await run.withdraw([rows.WANT_STOP])
    except StoreError:  # one that an agent serves ends with it
        if not run.picture.verdict:
            raise
        return ended(run.picture)
    return told


async def forget(run: Run) -> str:
    """Delete what the store still holds of a run that nobody is left of."""

    def check(picture: Picture) -> None:
        if picture.present:
            there = nodes(len(picture.present))
            raise NotDone(f"run {picture.run_id} has {there}; end it first (torshctl stop)")

    if not await run.erase(check):
        raise NotDone(f"run {run.picture.run_id} begins again: not forgotten")
    return f"run {run.picture.run_id} is forgotten"


def _check_runs(run: Run) -> None:
    if run.picture.verdict:
        raise NotDone(ended(run.picture))
    if run.picture.is_abandoned:
        raise NotDone(f"no node of run {run.picture.run_id} is left (torshctl forget deletes it)")
