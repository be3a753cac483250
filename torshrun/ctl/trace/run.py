"""Gathers the records of a job, puts them on one clock, and writes them to a file."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.trace_file import check_place, write_trace
from torshrun.ctl.places import Asking, Unfit
from torshrun.ctl.recorded import UNSEEN
from torshrun.ctl.trace.joined import Joined
from torshrun.ctl.trace.live import follow, jobs_of
from torshrun.ctl.trace.nodes import Node, kept, nodes_of_traces, trace_in
from torshrun.ctl.trace.others import Others
from torshrun.health.collecting import Steps
from torshrun.health.traced import read_trace
from torshrun.health.tracing import LONGEST, argument_of
from torshrun.text import format_ranks, printable, size

_SECONDS = 10.0
_PATIENCE = 300.0
"""Seconds to wait for steps, unless --seconds sets a number."""


class Wanted(NamedTuple):
    """Holds what to show, and the file to write."""

    places: Sequence[str]
    """Runs, directories, files and pids. () is the only job of this host."""
    steps: Steps | None
    seconds: float | None
    output: str
    others: Sequence[str]
    """Files of other programs to include: FILE, or RANK=FILE."""


def parse_steps(text: str) -> Steps:
    """Parse A:B, or A for a single step. Raises ConfigError."""
    match = re.fullmatch(r"(\d{1,15})(?::(\d{1,15}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ConfigError(f"--steps {printable(text)} must be A:B, such as 100:110, or one number")
    return Steps(int(match[1]), int(match[2] or match[1]))


def run(wanted: Wanted, asking: Asking, say: Callable[[str], None]) -> int:
    """Write the trace, say what it contains, and return the exit code.

    Raises Unfit if there is nothing to show, and ConfigError if the options are invalid.
    """
    if wanted.seconds == 0:
        raise ConfigError("--seconds 0 must be more than 0")
    with _interrupts():
        try:
            write(_nodes(wanted, asking, say), wanted, say)
            return 0
        except KeyboardInterrupt:
            say("interrupted: nothing is written")
            return 128 + signal.SIGINT


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Turn signals that would end this process into exceptions, so that no partial file is left."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.getsignal(each) for each in signals}
    for each in (each for each in signals if before[each] is signal.SIG_DFL):
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def write(nodes: Sequence[Node], wanted: Wanted, say: Callable[[str], None]) -> None:
    """Write the nodes' records as one trace.

    Raises Unfit if there is nothing to write, and TraceNotWritten.
    """
    joined = Joined(nodes, wanted.steps, wanted.seconds)
    if not joined.count and wanted.steps:
        raise Unfit(f"nothing is recorded for the steps {wanted.steps.first}:{wanted.steps.last}")
    if len(joined.silent) == sum(len(node.workers) for node in nodes):
        raise Unfit(f"{next(joined.complaints())}. {UNSEEN}")
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


def _nodes(wanted: Wanted, asking: Asking, say: Callable[[str], None]) -> list[Node]:
    check_place(wanted.output)
    seconds = wanted.seconds or (_PATIENCE if wanted.steps else _SECONDS)
    runs = [each for each in wanted.places if asking.is_run(each)]
    pids = [int(each) for each in wanted.places if each.isdecimal() and each not in runs]
    places = [each for each in wanted.places if not each.isdecimal() and each not in runs]
    found = [node for each in runs for node in _asked(each, seconds, wanted.steps, asking, say)]
    found += [node for each in places if Path(each).is_dir() for node in kept(each)]
    found += nodes_of_traces([trace_in(each) for each in places if not Path(each).is_dir()])
    if pids or not wanted.places:
        found += follow(jobs_of(pids), seconds, wanted.steps, say)
    if not any(node.workers for node in found):
        raise Unfit("nothing was recorded")
    return found


def _asked(
    run_id: str, seconds: float, steps: Steps | None, asking: Asking, say: Callable[[str], None]
) -> list[Node]:
    """Ask the agents of a run to follow their workers.

    Raises ConfigError, Unfit or StoreError.
    """
    if seconds > LONGEST:
        raise ConfigError(f"--seconds {seconds:g}: agents follow a run for {LONGEST:g} s at most")
    until = f"steps {steps.first} to {steps.last}" if steps else f"{seconds:g} s"
    say(f"asking the agents of run {printable(run_id)} for {until}")
    answered = asking.ask(run_id, ["trace"], argument_of(seconds, steps), seconds)["trace"]
    traces = [trace for each in answered.contents.values() if (trace := read_trace(each))]
    if not traces:
        raise Unfit("; ".join(answered.silent) or f"no agent of run {run_id} has answered")
    for line in answered.silent:
        say(line)
    return nodes_of_traces(traces)
