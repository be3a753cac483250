"""Events of a job: one JSON object per line, for programs that watch it.

SCHEMA lists the events and their facts. Within a version, events and facts may be added, but none
changes its meaning or is removed; readers skip those that they do not know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torsh_runtime.event_schema import SCHEMA, Fact, Kind

__all__ = ["LONGEST_TEXT", "SCHEMA", "VERSION", "Event", "Fact", "Kind", "faults"]

VERSION = 1
"""Version of the schema, which every line has as "v"."""
LONGEST_TEXT = 16384
"""The largest number of characters of a text in an event; longer texts are cut off."""

_ENVELOPE = ("v", "event", "time", "run_id", "node_rank", "round")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Represents an event of a job."""

    name: str
    """Name of the event, a key of SCHEMA."""
    time: float
    """Time of the event in seconds since 1970, by the clock of the node that reports it."""
    run_id: str
    """The job's name."""
    node_rank: int
    """The node that reports it."""
    round: int
    """The round in which it happened."""
    facts: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """The facts that SCHEMA lists for this name."""

    def to_json(self) -> bytes:
        """Return the event as a line of ASCII, with its newline.

        Numbers that JSON lacks (infinity, NaN) become null, and long texts are cut off.
        """
        import json

        values = (VERSION, self.name, round(self.time, 6), self.run_id, self.node_rank, self.round)
        document = dict(zip(_ENVELOPE, values, strict=True)) | dict(self.facts)
        return json.dumps(_plain(document), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_json(cls, line: str | bytes) -> Event:
        """Return the event of a line, including facts that this version does not know.

        Raises ValueError if the line is no event of this version.
        """
        import json

        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a line of JSON ({error})") from None
        if not isinstance(document, dict) or document.get("v") != VERSION:
            raise ValueError(f'not an event of version {VERSION}: "v" is missing or another')
        envelope = {name: document.pop(name, None) for name in _ENVELOPE}
        if not _is_envelope(envelope):
            raise ValueError(f"not an event: its {', '.join(_ENVELOPE)} are not all as they should")
        del envelope["v"]
        return cls(name=envelope.pop("event"), facts=MappingProxyType(document), **envelope)


def faults(event: Event) -> tuple[str, ...]:
    """Return how an event deviates from SCHEMA, a sentence for each fault; () if it conforms."""
    kind = SCHEMA.get(event.name)
    if kind is None:
        return (f"there is no event {event.name!r}",)
    found = [f"{event.name} lacks {name}" for name in kind.facts if name not in event.facts]
    for name, value in event.facts.items():
        fact = kind.facts.get(name)
        if fact is None:
            found.append(f"{event.name} has no fact {name!r}")
        elif not _fits(value, fact):
            found.append(f"{event.name}: {name}={value!r} is not {fact.type} as described")
    return tuple(found)


def _plain(value: object) -> object:
    """Return `value` converted to types that JSON has."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT] + "…"
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return [_plain(inner) for inner in sorted(value, key=str)]
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(inner) for inner in value]
    return _plain(str(value))


def _fits(value: object, fact: Fact) -> bool:
    if fact.type in ("integers", "texts"):
        inner = int if fact.type == "integers" else str
        return isinstance(value, list | tuple) and all(_is(each, inner) for each in value)
    if not _is(value, *_TYPES[fact.type]):
        return False
    return not fact.choices or value in fact.choices


def _is(value: object, *types: type) -> bool:
    """Return isinstance(value, types), except that True and False are no numbers."""
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _is_envelope(values: Mapping[str, Any]) -> bool:
    return (
        _is(values["event"], str)
        and _is(values["time"], int, float)
        and _is(values["run_id"], str)
        and _is(values["node_rank"], int)
        and _is(values["round"], int)
    )


_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "text": (str,),
    "boolean": (bool,),
}
