"""Joins the records of all nodes on one clock, as the events of one trace."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torsh_runtime.monitoring import timeline
from torsh_runtime.monitoring.layout import MESSAGES
from torsh_runtime.monitoring.notes import Note
from torsh_runtime.monitoring.timeline import Message
from torsh_runtime.monitoring.trace_events import FAR, Event, instant, name_events
from torshrun.ctl.trace.nodes import Node, Worker
from torshrun.health.collecting import Steps
from torshrun.text import format_ranks

_BEFORE = 1e-9
"""Seconds by which the last step that is shown ends before the next step, which is not."""


class Placed(NamedTuple):
    """Holds a node and its offset in the trace."""

    node: Node
    shift: float
    """Seconds to add to its clock to get the time in the trace."""
    clock: str
    """The accuracy of the offset, for people."""


class Joined:
    """Produces the trace of all nodes, which begins with time 0."""

    def __init__(self, nodes: Sequence[Node], steps: Steps | None, seconds: float | None) -> None:
        """Scan the records of `nodes`.

        `seconds` limits what agents kept to the last seconds. None is all.
        """
        self._steps = steps
        self._spans: dict[int, tuple[float, float]] = {}
        clocks = _clocks(nodes)
        found = [_Scan(node, offset, seconds, steps) for node, offset, _ in clocks]
        self.count = sum(each.count for each in found)
        """How many operations are shown, and how many notes."""
        self.noted = sum(each.noted for each in found)
        self.seconds = max((each.last for each in found), default=0.0)
        zero = min((each.first for each in found), default=0.0)
        zero = zero if math.isfinite(zero) else 0.0
        self.seconds = max(self.seconds - zero, 0.0)
        self.placed = [Placed(node, offset - zero, words) for node, offset, words in clocks]
        self._windows = [each.windows for each in found]
        self._joined = [
            timeline.joined_messages(
                message for each in found if each.node.round == round_ for message in each.messages
            )
            for round_ in (node.round for node in nodes)
        ]
        self.silent = sorted(rank for each in found for rank in each.silent)

    def events(self, others: Sequence[Sequence[Event]] = ()) -> Iterator[Event]:
        """Yield the events in order of time, names first, merged with the streams `others`."""
        names: dict[int, str] = {}
        for node, _, clock in self.placed:
            host = f"{node.host}, {clock}" if clock else node.host
            names |= dict.fromkeys((worker.rank for worker in node.workers), host)
        for rank, name in sorted(names.items()):
            yield from name_events(rank, name)
        streams = [
            self._of(worker, placed, windows[worker.rank], joined)
            for placed, windows, joined in zip(
                self.placed, self._windows, self._joined, strict=True
            )
            for worker in placed.node.workers
        ]
        yield from heapq.merge(self._rounds(), *streams, *others, key=_time)

    def about(self) -> Mapping[str, object]:
        """Return the metadata that is written into the file."""
        return {
            "ranks": sorted({w.rank for each in self.placed for w in each.node.workers}),
            "clocks": {
                f"node {each.node.node} ({each.node.host})": each.clock or "the only one"
                for each in self.placed
            },
            "complaints": list(self.complaints()),
        }

    def complaints(self) -> Iterator[str]:
        """Yield what a reader of the trace should know, in words."""
        silent = {*self.silent}
        if silent:
            has = "has" if len(silent) == 1 else "have"
            yield (
                f"{format_ranks(silent)} {has} recorded nothing: TORSH_RECORDER=off, or no "
                f"group or step yet"
            )
        for each in self.placed:
            yield from each.node.complaints

    def _of(
        self,
        worker: Worker,
        placed: Placed,
        window: tuple[float, float],
        joined: Collection[Message],
    ) -> Iterator[Event]:
        return timeline.events_of(
            worker.rank,
            worker.operations(),
            worker.notes(),
            worker.groups,
            since=window[0],
            until=window[1],
            shift=placed.shift + placed.node.zero,
            joined=joined,
        )

    def _rounds(self) -> Iterator[Event]:
        """Yield an event for the end of each round but the last."""
        rounds = sorted({each.node.round for each in self.placed})
        for number in rounds[:-1]:
            at = max(e.node.at + e.shift for e in self.placed if e.node.round == number)
            yield instant(at, f"attempt {number} had ended", {"attempt": number})


class _Scan:
    """Gathers what must be known of a node's records before the first event is produced."""

    def __init__(
        self, node: Node, shift: float, seconds: float | None, steps: Steps | None
    ) -> None:
        self.node = node
        self.windows: dict[int, tuple[float, float]] = {}
        self.messages: list[tuple[str, Message]] = []
        self.silent: list[int] = []
        self.first, self.last = math.inf, -math.inf
        self.count = self.noted = 0
        since = -math.inf if node.began is None or steps else node.began - node.zero
        until = node.at - node.zero
        if seconds is not None and node.began is None:
            since = until - seconds
        for worker in node.workers:
            notes = list(worker.notes())
            window = since, until
            if steps is not None:
                window = _window(notes, steps, until)
            self.windows[worker.rank] = window
            self._scan(worker, notes, window, shift + node.zero)

    def _scan(
        self, worker: Worker, notes: Sequence[Note], window: tuple[float, float], shift: float
    ) -> None:
        since, until = window
        oldest = max(since, until - FAR)
        times = [note.time for note in notes if oldest <= note.time <= until]
        self.noted += len(times)
        has_any = bool(notes)
        messages = []
        for each in worker.operations():
            has_any = True
            if each.operation in MESSAGES:
                messages.append(each)
            left = until if each.left is None else each.left
            if left >= oldest and until - FAR < each.entered <= until:
                times += (max(each.entered, since), min(left, until))
                self.count += 1
        first = since if math.isfinite(since) else min(times, default=math.inf)
        if not has_any:
            self.silent.append(worker.rank)
        self.messages += timeline.messages_of(worker.rank, messages, worker.groups)
        self.first = min(self.first, first + shift)
        self.last = max(self.last, max(times, default=-math.inf) + shift)


def _window(notes: Iterable[Note], steps: Steps, until: float) -> tuple[float, float]:
    """Return when the first of these steps began and when the last one ended.

    The window is empty if none of them was recorded.
    """
    since = None
    for note in notes:
        if note.kind == "step" and since is None and steps.first <= note.value <= steps.last:
            since = note.time
        if note.kind == "step" and note.value > steps.last and since is not None:
            return since, note.time - _BEFORE
    return (until, until) if since is None else (since, until)


def _clocks(nodes: Sequence[Node]) -> list[tuple[Node, float, str]]:
    """Return for each node the seconds by which its clock is behind a common one.

    The third element describes in words how exact that is.
    """
    if len({(each.node, each.host) for each in nodes}) < 2:
        return [(each, 0.0, "") for each in nodes]
    # Records of an earlier round may be aligned to the clock of a different leader. The newest
    # offset of each node applies to all its rounds, as they share the node's clock.
    newest = {(each.node, each.host): each for each in sorted(nodes, key=lambda each: each.round)}
    common = max((n.at + n.offset for n in newest.values() if n.offset is not None), default=0.0)
    found = []
    for each in nodes:
        known = newest[each.node, each.host]
        if known.offset is None:
            found.append((each, common - known.at, "clock unknown"))
        else:
            found.append((each, known.offset, f"clock ± {_span(known.bound)}"))
    return found


def _span(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _time(event: Event) -> float:
    return float(event.get("ts", -math.inf))
