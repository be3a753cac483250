"""Puts files of other programs on the clock of a trace: torch.profiler's, and torshrun's --events.

Both contain times of the node's wall clock. For each node it is known by how much that differs from
the clock of its records, so that wall clocks of different nodes are never compared.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torsh_runtime.events import Event as JobEvent
from torsh_runtime.monitoring.trace_events import Event, instant, named, process_of, track_of
from torshrun.ctl.places import Unfit
from torshrun.ctl.trace.joined import Joined, Placed
from torshrun.text import printable

_FIRST_TRACK, _ORDER = 500, 50_000
_MOST_TRACKS = 499
_MOST_BYTES = 2 << 30
_ARROWS = "stf"
_TEXT = ("summary", "reason", "signal", "cause", "outcome")
"""Facts of a job's event, of which the first that it has is shown."""


@dataclass(slots=True)
class Others:
    """Collects the events of all such files."""

    joined: Joined
    complaints: list[str] = field(default_factory=list)
    streams: list[list[Event]] = field(default_factory=list)
    """The events of each file in order of time, names first."""
    _tracks: dict[int, int] = field(default_factory=dict)
    """The number of tracks of each rank."""

    def add(self, what: str) -> None:
        """Add a file, given as FILE or RANK=FILE.

        Raises Unfit if it is of neither kind, or does not belong to the trace.
        """
        match = re.fullmatch(r"(\d{1,7})=(.+)", what, re.DOTALL)
        rank, path = (int(match[1]), match[2]) if match else (None, what)
        content = _content(path)
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict) and isinstance(document.get("traceEvents"), list):
            self._add_profile(path, document, rank)
        elif events := list(_job_events(content)):
            self._add_job(path, events)
        else:
            raise Unfit(
                f"{printable(path)} is neither a trace of torch.profiler nor a file of --events"
            )

    # ---- torch.profiler

    def _add_profile(self, path: str, document: Mapping[str, object], rank: int | None) -> None:
        found = [each for each in _list(document.get("traceEvents")) if isinstance(each, dict)]
        rank = self._rank(path, document, found) if rank is None else rank
        placed, wall = self._clock(path, rank)
        base = document.get("baseTimeNanoseconds")
        first = (base if isinstance(base, int) else 0) / 1e3 + (placed.shift - wall) * 1e6
        tracks = self._names(rank, found)
        end = self.joined.seconds * 1e6
        shown: list[Event] = []
        for each in found:
            track = tracks.get((str(each.get("pid")), str(each.get("tid"))))
            if track is not None and (event := _moved(each, first, rank, track)):
                shown.append(event)
        inside = [
            each for each in shown if each["ts"] < end and each["ts"] + each.get("dur", 0) > 0
        ]
        self._complain(path, len(shown), len(inside))
        used, threads = {each["tid"] for each in inside}, _thread_names(found)
        names = [
            event
            for (pid, tid), track in tracks.items()
            if track in used
            for event in _name(rank, track, f"torch: {threads.get((pid, tid), tid)}")
        ]
        inside = _whole_arrows(inside, f"{rank} {path}")
        self.streams.append([*names, *sorted(inside, key=lambda each: float(each["ts"]))])

    def _rank(
        self, path: str, document: Mapping[str, object], found: Sequence[Mapping[str, object]]
    ) -> int:
        told = document.get("distributedInfo")
        rank = told.get("rank") if isinstance(told, dict) else None
        if isinstance(rank, int):
            return rank
        pids = {each.get("pid") for each in found}
        for placed in self.joined.placed:
            for worker in placed.node.workers:
                if worker.pid is not None and worker.pid in pids:
                    return worker.rank
        name = printable(path)
        raise Unfit(f"{name} does not say which rank it belongs to: give it, as in --with 3={name}")

    def _clock(self, path: str, rank: int) -> tuple[Placed, float]:
        """Return the node that has the rank, and the offset of its wall clock."""
        for placed in reversed(self.joined.placed):
            if any(worker.rank == rank for worker in placed.node.workers):
                if placed.node.wall is None:
                    break
                return placed, placed.node.wall
        else:
            raise Unfit(f"{printable(path)} belongs to rank {rank}, which has no records")
        raise Unfit(f"{printable(path)}: the wall clock of rank {rank}'s node is not known")

    def _names(
        self, rank: int, found: Sequence[Mapping[str, object]]
    ) -> dict[tuple[str, str], int]:
        """Return the track of each of the file's threads. Events without a thread have none."""
        tracks: dict[tuple[str, str], int] = {}
        for each in found:
            pid, tid = each.get("pid"), each.get("tid")
            if each.get("ph") == "M" or not isinstance(pid, int) or not isinstance(tid, int | str):
                continue
            if (str(pid), str(tid)) not in tracks:
                number = self._tracks[rank] = self._tracks.get(rank, -1) + 1
                place = _FIRST_TRACK + min(number, _MOST_TRACKS)
                tracks[str(pid), str(tid)] = track_of(rank, place)
        return tracks

    def _complain(self, path: str, count: int, inside: int) -> None:
        if inside < count:
            self.complaints.append(
                f"{printable(path)}: {count - inside} of its {count} events are outside of this "
                "trace's time"
            )

    # ---- events of the job

    def _add_job(self, path: str, events: Sequence[JobEvent]) -> None:
        end, shown = self.joined.seconds, []
        for each in events:
            placed = self._node(each.node_rank)
            if placed is None or placed.node.wall is None:
                continue
            time = each.time - placed.node.wall + placed.shift
            if 0 <= time <= max(end, placed.node.at + placed.shift) + 60:
                rank = each.facts.get("rank")
                of_rank = rank if isinstance(rank, int) else None
                facts = {"round": each.round, "node": each.node_rank, **each.facts}
                shown.append(instant(time, _told(each), facts, of_rank))
        if not shown:
            self.complaints.append(
                f"{printable(path)}: none of its events is within this trace's time"
            )
        self.streams.append(sorted(shown, key=lambda each: float(each["ts"])))

    def _node(self, number: int) -> Placed | None:
        nodes = {placed.node.node: placed for placed in self.joined.placed}
        return nodes.get(number) or (next(iter(nodes.values())) if len(nodes) == 1 else None)


def _content(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if content.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(_MOST_BYTES + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise Unfit(f"cannot read {printable(path)}: {why}") from None
    if len(content) > _MOST_BYTES:
        raise Unfit(f"{printable(path)} has more than 2 GiB")
    return content


def _moved(each: Mapping[str, object], first: float, rank: int, track: int) -> Event | None:
    """Return the event moved to the rank's track, or None if it cannot be shown."""
    time, phase = _number(each.get("ts")), str(each.get("ph"))
    if time is None or phase not in ("X", "i", "I", *_ARROWS):
        return None
    event = {**each, "ts": round(time + first, 3), "pid": process_of(rank), "tid": track}
    if phase == "X":
        length = _number(each.get("dur"))
        if length is None or length < 0:
            return None
        event["dur"] = length
    return _plain(event)


def _plain(event: Event) -> Event | None:
    """Return the event in a form that JSON can express, or None.

    Arguments such as NaN are dropped.
    """
    try:
        json.dumps(event, allow_nan=False)
    except (ValueError, RecursionError):
        event = {**event, "args": {}}
        try:
            json.dumps(event, allow_nan=False)
        except (ValueError, RecursionError):
            return None
    return event


def _whole_arrows(events: Sequence[Event], file: str) -> list[Event]:
    """Drop arrows that have lost an end, and make the ids of arrows unique to the file."""
    ends: dict[str, set[str]] = {}
    for each in events:
        if each["ph"] in _ARROWS:
            ends.setdefault(_arrow(each), set()).add(each["ph"])
    found = []
    for each in events:
        if each["ph"] not in _ARROWS:
            found.append(each)
        elif {"s", "f"} <= ends[_arrow(each)]:
            number = int.from_bytes(f"{file} {_arrow(each)}".encode(), "big") % ((1 << 52) - 47)
            found.append({**each, "id": number})
    return found


def _arrow(event: Event) -> str:
    return f"{event.get('cat')} {event.get('id')}"


def _thread_names(found: Sequence[Mapping[str, object]]) -> dict[tuple[str, str], str]:
    """Return the file's names for its threads and for the streams of GPUs."""
    names = {}
    for each in found:
        args = each.get("args")
        if each.get("name") == "thread_name" and isinstance(args, dict):
            names[str(each.get("pid")), str(each.get("tid"))] = printable(str(args.get("name")))
    return names


def _name(rank: int, track: int, name: str) -> Iterator[Event]:
    pid = process_of(rank)
    yield named(pid, "thread_name", track, name=name)
    yield named(pid, "thread_sort_index", track, sort_index=_ORDER + track)


def _job_events(content: bytes) -> Iterator[JobEvent]:
    for line in content.splitlines():
        try:
            yield JobEvent.from_json(line)
        except ValueError:
            continue


def _told(event: JobEvent) -> str:
    name = event.name.replace("_", " ")
    text = next((str(event.facts[key]) for key in _TEXT if event.facts.get(key)), "")
    return f"{name}: {text}" if text else name


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]
