"""Renders the status line: the state of the job, in the terminal's last line. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from torsh_runtime.monitoring.pace import Pace
from torshrun.live.snapshot import Snapshot
from torshrun.text import printable

QUIET_SECONDS = 1.0
"""A job that is younger, in seconds, shows no status line; most short jobs never do."""
_GAP = "  "
_SHORTEST_FAILURE = 16
"""Columns below which the failure at the end of the line is not cut short."""


class Part(NamedTuple):
    text: str
    style: str
    """The parameters of its colour's escape sequence; "" is none."""
    weight: int
    """Parts of a higher weight are dropped first where space is scarce; 0 stays."""


def render(snapshot: Snapshot, now: float, width: int, *, color: bool) -> str:
    """Return the line for a terminal of `width` columns at `now`, of time.monotonic().

    It is "" for a young job. What there is no room for is left out, the least important first.
    """
    if now - snapshot.started < QUIET_SECONDS:
        return ""
    room, said = max(width, 1), parts(snapshot, now)
    while len(said) > 1 and _columns(said) > room:
        said.remove(max(said, key=lambda part: part.weight))
    failure = printable(snapshot.last_failure).encode("ascii", "replace").decode()
    left = room - _columns(said) - len(_GAP)
    if failure and left >= min(_SHORTEST_FAILURE, len(failure)):
        said.append(Part(failure, "31", 0))
    over = _columns(said) - room
    if over > 0:  # by the last part alone
        said[-1] = said[-1]._replace(text=said[-1].text[: -over - 1] + "…")
    styled = (f"\x1b[{part.style}m{part.text}\x1b[0m" if part.style else part.text for part in said)
    return _GAP.join(styled if color else (part.text for part in said))


def parts(snapshot: Snapshot, now: float) -> list[Part]:
    """Return all parts but a failure, in their order; a column for each character."""
    short, again = snapshot.alive < snapshot.workers, snapshot.restarts
    said = [
        Part("torshrun", "1;36", 5),
        Part("" if snapshot.state == "running" else snapshot.state, "33", 1),
        Part(f"{snapshot.alive}/{snapshot.workers} workers", "33" if short else "32", 0),
        Part(_step(snapshot.step, snapshot.pace), "", 3),
        Part(_speed(snapshot.pace), "", 4),
        Part(f"round {snapshot.round}", "", 6),
        Part(f"{snapshot.num_nodes} nodes" if snapshot.num_nodes > 1 else "", "", 7),
        Part(f"{again} restart{'s' if again > 1 else ''}" if again else "", "33", 4),
        Part(elapsed(now - snapshot.started), "2", 2),
    ]
    return [part for part in said if part.text]


def _step(step: int | None, pace: Pace | None) -> str:
    """Return a text such as "step 120/1,000", of steps, or else of the bar of a loop."""
    if pace is not None and pace.total is not None:
        done = step if pace.done is None else pace.done
        return "" if done is None else f"step {done:,}/{pace.total:,}"
    return "" if step is None else f"step {step:,}"


def _speed(pace: Pace | None) -> str:
    """Return a text such as "3.2 it/s, loss 0.42"."""
    if pace is None:
        return ""
    said = [] if pace.per_second is None else [f"{pace.per_second:.3g} it/s"]
    if "loss" in pace.scalars:
        said.append(f"loss {pace.scalars['loss']:.3g}")
    return ", ".join(said)


def _columns(said: Sequence[Part]) -> int:
    return len(_GAP.join(part.text for part in said))


def elapsed(seconds: float) -> str:
    """Return a text such as "00:12:31", with days before it if there are any."""
    days, rest = divmod(max(0, int(seconds)), 86400)
    return (f"{days}d " if days else "") + time.strftime("%H:%M:%S", time.gmtime(rest))
