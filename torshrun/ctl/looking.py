"""Defines torshctl's commands that show what workers do or did: flight, stacks, explain, top,
trace.
"""

from __future__ import annotations

from typing import Any

import click

from torshrun.config import values
from torshrun.ctl.meeting_options import asking, asking_of
from torshrun.ctl.saying import say

SHORTEST_INTERVAL = 0.1
"""The shortest interval between two pictures of torshctl top, in seconds."""


@click.command(short_help="Show which rank has not called what the others wait in.")
@click.argument("place", metavar="[RUN|DIR|PID]", required=False)
@click.option("--last", default="3", metavar="N", help="Show the last N calls. [default: 3]")
@click.option("--json", "as_json", is_flag=True, help="All recorded calls, as one line of JSON.")
@asking
def flight(place: str | None, last: str, as_json: bool, **options: Any) -> int:
    """Show the last operations of each rank, as they were recorded, and which rank is out of step.

    DIR is a directory that torshrun has created in --log-dir or in TMPDIR, or one above it: the
    newest attempt there that has failed or hung is shown. Nodes that wrote to other disks are
    missing: copy their directories into one. PID is that of a torshrun on this host; without a
    place, all of them are shown. For a RUN of several nodes all agents are asked: say where they
    rendezvous, as for the other commands.

    Exit codes: 0 done; 1 there is nothing to show; 2 wrong usage.
    """
    from torshrun.ctl.flight import show

    if not last.isdecimal():
        raise click.UsageError(f"--last {last} must be a number, 0 or more")
    return show(place, int(last), asking_of(options), as_json=as_json)


@click.command(short_help="Show the Python stacks of all ranks.")
@click.argument("place", metavar="[RUN|PID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="As one line of JSON.")
@asking
def stacks(place: str | None, as_json: bool, **options: Any) -> int:
    """Show the Python stack of each rank, as py-spy sees it, also of stopped ranks, and how ranks
    have ended that no longer run. RUN has several nodes, whose agents are asked; PID is that of a
    torshrun on this host; without either, all on this host are shown.

    Exit codes: 0 done; 1 there is nothing to show; 2 wrong usage; 69 the store cannot be reached.
    """
    from torshrun.ctl.stacks import show

    return show(place, asking_of(options), as_json=as_json)


@click.command(short_help="Say what is wrong with a job, and why.")
@click.argument("place", metavar="RUN|DIR|PID")
@click.option("--json", "as_json", is_flag=True, help="As one line of JSON, 8 KiB at most.")
@asking
def explain(place: str, as_json: bool, **options: Any) -> int:
    """Say what is wrong with a job, or that nothing is: which ranks, in which operation, since
    when, and where they are blocked. RUN, DIR and PID are as in flight.

    Exit codes: 0 nothing is wrong; 1 something is; 2 wrong usage or there is no such job; 69 the
    store cannot be reached.
    """
    from torshrun.ctl.explain import show

    return show(place, asking_of(options), as_json=as_json)


@click.command(short_help="Show live how each rank spends its time.")
@click.argument("place", metavar="[PID|DIR|RUN]", required=False)
@click.option(
    "--at", default="0", metavar="-SECONDS", help="Show the state of that time ago, such as -30s."
)
@click.option("--once", is_flag=True, help="Print one picture and end.")
@click.option(
    "--interval", default="1", metavar="SECONDS", help="Time between two pictures. [default: 1]"
)
@asking
def top(place: str | None, at: str, once: bool, interval: str, **options: Any) -> int:
    """Show live in the terminal how each rank spends its time, what it is doing and which rank it
    waits for, until q is pressed. This needs no endpoint: it uses what workers have recorded. If
    stdout is no terminal, one picture is printed.

    PID is that of a torshrun on this host; without a place, all of them are shown. DIR is a
    directory of --log-dir: the newest attempt there that has failed or hung is shown as it was at
    its end. For a RUN of several nodes all agents are asked each time: say where they rendezvous,
    as for the other commands.

    Exit codes: 0 done; 1 there is nothing to show; 2 wrong usage; 69 the store cannot be reached.
    """
    from torshrun.ctl.top import show

    if values.seconds(at.removeprefix("-")) and not at.startswith("-"):
        raise click.UsageError(f"--at {at} is not in the past: give it like -30s")
    pause = max(values.seconds(interval), SHORTEST_INTERVAL)
    moment = -values.seconds(at.removeprefix("-"))
    return show(place, moment, pause, asking_of(options), once=once)


@click.command(short_help="Write the timeline of all ranks, for Perfetto.")
@click.argument("places", metavar="[RUN|DIR|FILE|PID]...", nargs=-1)
@click.option(
    "--steps", metavar="A:B", help="Only these steps, which a running job must not have begun yet."
)
@click.option(
    "--seconds",
    metavar="N",
    help="How long to follow a running job, or to wait for the steps; of a directory, the "
    "last N seconds. [default: 10; 300 for steps; all]",
)
@click.option(
    "-o", "--output", default="trace.json.gz", metavar="FILE", help="[default: trace.json.gz]"
)
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="[RANK=]FILE",
    help="Include what torch.profiler wrote there, or torshrun's --events.",
)
@asking
def trace(
    places: tuple[str, ...],
    steps: str | None,
    seconds: str | None,
    output: str,
    others: tuple[str, ...],
    **options: Any,
) -> int:
    """Write what each rank did and when, in Chrome's trace format: open the file at
    https://ui.perfetto.dev. It shows steps, sections, collectives as waiting and moving, and
    messages as arrows.

    PID is that of a torshrun on this host; without a place, the only one is followed. Its workers
    are not disturbed. DIR is a directory that torshrun has created in --log-dir, or one above it:
    the newest attempt there that has failed or hung is shown, with those before it. Ctrl-C ends it
    early. The agents of a RUN of several nodes are asked to follow their workers: say where they
    rendezvous.

    Exit codes: 0 done; 1 there is nothing to show, or it cannot be written; 2 wrong usage; 69 the
    store cannot be reached.
    """
    from torshrun.ctl.trace.run import Wanted, parse_steps
    from torshrun.ctl.trace.run import run as write

    wanted = Wanted(
        places=places,
        steps=parse_steps(steps) if steps is not None else None,
        seconds=values.seconds(seconds) if seconds is not None else None,
        output=output,
        others=others,
    )
    return write(wanted, asking_of(options), say)


COMMANDS = (flight, stacks, explain, top, trace)
