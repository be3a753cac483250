"""torshctl trace: gathers records, puts them on one clock and writes them to a file."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.trace_file import write_trace
from torshrun.ctl.places import Unfit
from torshrun.ctl.trace.joined import Joined
from torshrun.ctl.trace.live import Steps, follow, jobs_of
from torshrun.ctl.trace.nodes import Node, kept, nodes_of_traces, trace_in
from torshrun.ctl.trace.others import Others
from torshrun.text import format_ranks, printable, size

_SECONDS = 10.0
_PATIENCE = 300.0
"""Seconds for which steps are waited for, unless --seconds says another number."""


class Wanted(NamedTuple):
    """What is to be shown, and where it goes."""

    places: Sequence[str]
    """Directories, files and pids; () is the only job of this host."""
    steps: Steps | None
    seconds: float | None
    output: str
    others: Sequence[str]
    """Files of other programs that belong to it: FILE, or RANK=FILE."""


def parse_steps(text: str) -> Steps:
    """Of A:B, or A for one. ConfigError."""
    match = re.fullmatch(r"(\d{1,15})(?::(\d{1,15}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ConfigError(f"--steps {printable(text)} must be A:B, such as 100:110, or one number")
    return Steps(int(match[1]), int(match[2] or match[1]))


def run(wanted: Wanted, say: Callable[[str], None]) -> int:
    """Write the trace, and say what it holds; the exit code. Unfit if there is nothing."""
    with _interrupts():
        try:
            return _run(wanted, say)
        except KeyboardInterrupt:
            say("interrupted: nothing is written")
            return 128 + signal.SIGINT


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Let signals that end this process be exceptions, so that no part of a file is left."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.getsignal(each) for each in signals}
    for each in (each for each in signals if before[each] is signal.SIG_DFL):
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _run(wanted: Wanted, say: Callable[[str], None]) -> int:
    write(_nodes(wanted, say), wanted, say)
    return 0


def write(nodes: Sequence[Node], wanted: Wanted, say: Callable[[str], None]) -> None:
    """Write these nodes' records as one trace. Unfit if there is nothing, TraceNotWritten."""
    joined = Joined(nodes, wanted.steps, wanted.seconds)
    if not joined.count and wanted.steps:
        raise Unfit(f"nothing is recorded of the steps {wanted.steps.first}:{wanted.steps.last}")
    if len(joined.silent) == sum(len(node.workers) for node in nodes):
        raise Unfit(next(joined.complaints()))
    others = Others(joined)
    for each in wanted.others:
        others.add(each)
    for complaint in (*joined.complaints(), *others.complaints):
        say(complaint)
    written = write_trace(wanted.output, joined.events(others.streams), joined.about())
    ranks = format_ranks({w.rank for each in joined.placed for w in each.node.workers})
    say(
        f"{wanted.output}: {joined.count} operations of {ranks} in {joined.seconds:.3g} s, "
        f"{size(written)}; open it at https://ui.perfetto.dev"
    )


def _nodes(wanted: Wanted, say: Callable[[str], None]) -> list[Node]:
    pids = [int(each) for each in wanted.places if each.isdecimal()]
    places = [each for each in wanted.places if not each.isdecimal()]
    found = [node for each in places if Path(each).is_dir() for node in kept(each)]
    found += nodes_of_traces([trace_in(each) for each in places if not Path(each).is_dir()])
    if pids or not wanted.places:
        seconds = wanted.seconds or (_PATIENCE if wanted.steps else _SECONDS)
        found += follow(jobs_of(pids), seconds, wanted.steps, say)
    if not any(node.workers for node in found):
        raise Unfit("nothing was recorded")
    return found
