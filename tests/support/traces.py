"""Whether a trace is one that Perfetto shows as it is meant, and records to make some of."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Note

Event = dict[str, Any]
_NEAR = 1e-3
"""Microseconds that decimals may lose."""


def read_trace_file(path: Path) -> tuple[list[Event], Mapping[str, Any]]:
    """The events of a file, which are checked, and what else it says."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(content, parse_constant=_refuse)
    check_trace(document["traceEvents"])
    return document["traceEvents"], document["otherData"]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def check_trace(events: Sequence[Event]) -> None:
    """AssertionError unless events are in order, slices stand within each other, each begin has its
    end, each arrow both, and each track its name before it is used.
    """
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    named = set()
    opened: dict[tuple[int, int], list[tuple[str, float]]] = {}
    arrows: dict[int, list[str]] = {}
    for event in events:
        track = event["pid"], event.get("tid", 0)
        if event["name"] == "thread_name":
            named.add(track)
        if event["ph"] in "BEX":
            assert track in named, event
            _check_slice(event, opened.setdefault(track, []))
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event["ph"])
    assert all(sorted(ends) == ["f", "s"] for ends in arrows.values()), arrows
    left = [name for stack in opened.values() for name, end in stack if end == float("inf")]
    assert not left, left


def _check_slice(event: Event, stack: list[tuple[str, float]]) -> None:
    while stack and stack[-1][1] <= event["ts"] + _NEAR:
        stack.pop()
    if event["ph"] == "B":
        stack.append((event["name"], float("inf")))
    elif event["ph"] == "E":
        assert stack, event
        name, end = stack.pop()
        assert (name, end) == (event["name"], float("inf")), event
    else:
        assert event["dur"] >= 0, event
        end = event["ts"] + event["dur"]
        assert not stack or end <= stack[-1][1] + _NEAR, (event, stack[-1])
        stack.append((event["name"], end))


def slices(events: Iterable[Event], track: str | None = None) -> list[tuple[str, float, float]]:
    """Names, beginnings and ends in seconds of the slices, in the order of their beginnings."""
    events = list(events)
    tids = {e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == track}
    found: list[tuple[tuple[str, float, float], int]] = []
    opened: list[Event] = []
    for event in events:
        if track is not None and event.get("tid") not in tids:
            continue
        if event["ph"] == "X":
            end = (event["ts"] + event["dur"]) / 1e6
            found.append(((event["name"], event["ts"] / 1e6, end), len(opened)))
        elif event["ph"] == "B":
            opened.append(event)
        elif event["ph"] == "E":
            begun = opened.pop()
            span = begun["ts"] / 1e6, event["ts"] / 1e6
            found.append(((begun["name"], *span), len(opened)))
    found.sort(key=lambda each: (each[0][1], -each[0][2], each[1]))
    return [each for each, _ in found]


def operation(
    number: int, name: str, entered: float, *times: float | None, **facts: Any
) -> Operation:
    """`times`: when all had come, and when it was left; None or nothing is unknown."""
    came, left = (*times, None, None)[:2]
    known: dict[str, Any] = {
        "dtype": "float32",
        "reduction": "SUM",
        "elements": 10,
        "nbytes": 40,
        "root": -1,
        "arrays": 0,
        "group": 0,
        "ranks": 2,
        "sequence": number,
        "state": "running" if left is None else "done",
    }
    return Operation(
        number=number, operation=name, entered=entered, came=came, left=left, **{**known, **facts}
    )


def notes(*told: tuple[Any, ...]) -> list[Note]:
    """Of kind, name or step, time, and perhaps the thread, or the value of a scalar."""
    found = []
    for number, (kind, what, time, *more) in enumerate(told):
        value = what if kind == "step" else more[0] if kind == "scalar" else 0.0
        thread = more[0] if more and kind != "scalar" else 0
        found.append(Note(number, kind, "" if kind == "step" else what, time, value, thread))
    return found
