"""Implements torshctl stacks: shows where the Python code of all ranks is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import click

from torshrun.ctl.host_jobs import HostJob
from torshrun.ctl.places import Asking, jobs_here
from torshrun.health.stacks import collect
from torshrun.text import format_ranks, printable

SCHEMA = 1
_NOTHING = 1
_BOUND = 20.0
"""The most seconds that collecting the stacks of a job of this host may take."""
_CHARS = 1 << 15
_MOST_LINES = 60
"""The most lines of one stack that are shown."""


class Stands(NamedTuple):
    """Says where one rank is."""

    host: str
    pid: int
    ended: str
    """The end of its process, in words. Empty if it runs."""
    state: str
    """The state of its process, as in /proc. Empty if unknown."""
    waits: str
    """The kernel resource that its main thread waits for. Empty if unknown."""
    stack: str
    """The stack, most recent call first. Empty if unknown."""


class Stood(NamedTuple):
    """Says where the ranks of a job are."""

    name: str
    """The name that is shown to people."""
    ranks: Mapping[int, Stands]
    hints: Sequence[str]
    """Reasons why some stacks are missing, and what to do about it."""
    silent: Sequence[str]
    """Lines about nodes of which nothing is known."""


def find(place: str | None, asking: Asking) -> list[Stood]:
    """Return the stacks of a run, of the torshrun with this pid, or of all on this host for None.

    Raises Unfit if there is none.
    """
    if place is not None and (asking.is_run(place) or not place.isdecimal()):
        return [of_answers(place, *asking.ask(place, ["stacks"])["stacks"])]
    return [of_job(job) for job in jobs_here(place)]


def of_answers(run_id: str, contents: Mapping[str, bytes], silent: Sequence[str]) -> Stood:
    """Return the stacks of a run, from its agents' answers.

    Answers that cannot be decoded are ignored.
    """
    ranks: dict[int, Stands] = {}
    hints: dict[str, None] = {}
    for content in contents.values():
        with suppress(
            ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
        ):
            told = json.loads(content)
            host, hint = printable(str(told["host"])), printable(str(told["hint"]))
            found = {int(rank): _read(host, facts) for rank, facts in told["ranks"].items()}
            ranks |= found
            if hint:
                hints[f"{host}: {hint}"] = None
    return Stood(printable(f"run {run_id}"), dict(sorted(ranks.items())), [*hints], silent)


def _read(host: str, facts: Mapping[str, Any]) -> Stands:
    ended, state, waits = (
        printable(str(facts[name])[:_CHARS]) for name in ("ended", "state", "waits")
    )
    stack = "\n".join(map(printable, str(facts["stack"])[:_CHARS].splitlines()))
    return Stands(host, int(facts["pid"]), ended, state, waits, stack)


def of_job(job: HostJob) -> Stood:
    """Collect the stacks of a job that runs on this host."""
    import os

    pids = [worker.pid for worker in job.workers]
    stacks = asyncio.run(collect(pids, _BOUND))
    host = os.uname().nodename
    ranks = {
        each.rank: Stands(
            host, each.pid, "", each.state, each.waits, stacks.texts.get(each.pid, "")
        )
        for each in job.workers
    }
    return Stood(f"pid {job.agent}: {job.command}", ranks, [*filter(None, [stacks.hint])], ())


# ---- shown


def show(place: str | None, asking: Asking, *, as_json: bool) -> int:
    """Print the stacks and return the exit code."""
    found = find(place, asking)
    for each in found:
        if as_json:
            ranks = {rank: stands._asdict() for rank, stands in each.ranks.items()}
            facts = {"hints": [*each.hints], "silent": [*each.silent], "ranks": ranks}
            click.echo(json.dumps({"schema": SCHEMA, "job": each.name, **facts}))
        else:
            click.echo("\n".join(_lines(each)))
    return 0 if any(each.ranks for each in found) else _NOTHING


def _lines(stood: Stood) -> Iterator[str]:
    """Yield the lines of all ranks. Ranks with the same stack share one."""
    yield stood.name
    for line in stood.silent:
        yield f"  nothing from {line}"
    alike: dict[tuple[str, str], list[int]] = {}
    for rank, each in stood.ranks.items():
        alike.setdefault((_state(each), each.stack), []).append(rank)
    for (state, stack), ranks in alike.items():
        yield f"{format_ranks(ranks)}{where(stood, ranks)}{state}{':' if stack else ''}"
        lines = stack.splitlines()
        yield from (f"  {line}" for line in lines[:_MOST_LINES])
        if len(lines) > _MOST_LINES:
            yield f"  {len(lines) - _MOST_LINES} more lines"
    yield from stood.hints


def where(stood: Stood, ranks: Sequence[int]) -> str:
    """Return " on node1 (pid 812)", as far as these ranks have that in common."""
    hosts = {stood.ranks[rank].host for rank in ranks}
    host = f" on {hosts.pop()}" if len(hosts) == 1 else ""
    return f"{host} (pid {stood.ranks[ranks[0]].pid})" if len(ranks) == 1 else host


def _state(stands: Stands) -> str:
    told = manner(stands)
    if not (told or stands.stack):
        told = "its stack is unknown"
    return f", {told}" if told else ""


def manner(stands: Stands) -> str:
    """Describe the condition of its process. Empty if it just runs."""
    if stands.ended:
        return f"has ended: {stands.ended}"
    held = {"T": "is stopped (SIGCONT continues it)", "t": "is held by a debugger"}
    held |= {"D": "waits in the kernel, where no signal reaches it"}
    told = held.get(stands.state, "")
    return told or (f"waits for {stands.waits}" if stands.waits else "")
