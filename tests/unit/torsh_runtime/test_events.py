"""Events: what a line says, what is read back, and that docs/events.md tells the same."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime import events
from torsh_runtime.event_schema import SCHEMA, Fact
from torsh_runtime.events import Event, faults

DOC = Path(__file__).parents[3] / "docs/events.md"
EXAMPLES: dict[str, Any] = {
    "integer": 3,
    "number": 1.5,
    "text": "words",
    "boolean": True,
    "integers": [0, 1],
    "texts": ["a"],
}


def an_event(name: str, **facts: object) -> Event:
    return Event(name=name, time=1.25, run_id="j", node_rank=2, round=3, facts=facts)


def example(fact: Fact) -> Any:
    return fact.choices[0] if fact.choices else EXAMPLES[fact.type]


def test_a_line_says_everything_flat_in_one_object() -> None:
    line = an_event("notice", signal="SIGUSR1").to_json()
    assert line == (
        b'{"v":1,"event":"notice","time":1.25,"run_id":"j","node_rank":2,"round":3,'
        b'"signal":"SIGUSR1"}\n'
    )


@pytest.mark.parametrize("name", SCHEMA)
def test_every_event_survives_the_journey(name: str) -> None:
    facts = {key: example(fact) for key, fact in SCHEMA[name].facts.items()}
    event = an_event(name, **facts)
    assert faults(event) == ()
    assert Event.from_json(event.to_json()) == event


@given(st.text(), st.text())
def test_a_line_is_one_line_of_ascii_whatever_a_worker_wrote(run_id: str, text: str) -> None:
    event = Event(name="notice", time=0, run_id=run_id, node_rank=0, round=0, facts={"t": text})
    line = event.to_json()
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert Event.from_json(line) == event


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (float("nan"), None),
        (float("inf"), None),
        ((1, 2), [1, 2]),
        ({3, 1}, [1, 3]),
        (frozenset({"b", 1}), [1, "b"]),
        ({1: Path("/x")}, {"1": "/x"}),
        (b"raw", "b'raw'"),
        ("\udc80", "\udc80"),
        (None, None),
    ],
)
def test_what_json_lacks_is_said_otherwise(value: object, plain: object) -> None:
    assert json.loads(an_event("notice", it=value).to_json())["it"] == plain


def test_long_texts_are_cut() -> None:
    text = json.loads(an_event("notice", it="x" * 10**6).to_json())["it"]
    assert text == "x" * events.LONGEST_TEXT + "…"


def test_a_reader_takes_events_and_facts_that_it_does_not_know() -> None:
    event = an_event("of_tomorrow", color="blue")
    assert Event.from_json(event.to_json()).facts == {"color": "blue"}


GOOD = {"v": 1, "event": "x", "time": 1, "run_id": "", "node_rank": 0, "round": 0}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"null",
        json.dumps({**GOOD, "v": 2}),
        json.dumps({**GOOD, "event": 3}),
        json.dumps({**GOOD, "time": "now"}),
        json.dumps({**GOOD, "round": True}),
        json.dumps({**GOOD, "run_id": None}),
        json.dumps({key: value for key, value in GOOD.items() if key != "node_rank"}),
    ],
)
def test_a_line_that_is_no_event_is_an_error(line: bytes | str) -> None:
    Event.from_json(json.dumps(GOOD))
    with pytest.raises(ValueError, match="not a"):
        Event.from_json(line)


def test_faults_are_named() -> None:
    assert faults(an_event("nothing")) == ("there is no event 'nothing'",)
    assert faults(an_event("notice")) == ("notice lacks signal",)
    assert faults(an_event("notice", signal=10)) == ("notice: signal=10 is not text as described",)
    assert faults(an_event("notice", signal="", left=1)) == ("notice has no fact 'left'",)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("integer", True),
        ("integer", 1.0),
        ("number", "1"),
        ("number", False),
        ("boolean", 1),
        ("integers", [1, "2"]),
        ("integers", 1),
        ("texts", "abc"),
        ("texts", [1]),
        ("text", None),
    ],
)
def test_a_value_of_another_type_is_a_fault(
    type_: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = events.Kind("", {"it": Fact(type_, "")})
    monkeypatch.setattr(events, "SCHEMA", {"probe": kind})
    assert faults(an_event("probe", it=EXAMPLES[type_])) == ()
    assert len(faults(an_event("probe", it=value))) == 1


def test_a_text_outside_its_choices_is_a_fault() -> None:
    good = {key: example(fact) for key, fact in SCHEMA["job_finished"].facts.items()}
    assert faults(an_event("job_finished", **good)) == ()
    assert len(faults(an_event("job_finished", **{**good, "outcome": "fine"}))) == 1


def test_the_schema_is_sound() -> None:
    for name, kind in SCHEMA.items():
        assert kind.text.endswith("."), name
        for key, fact in kind.facts.items():
            assert key not in GOOD, f"{name}: {key} is taken by what every event tells"
            assert fact.type in EXAMPLES, f"{name}: {key}"
            assert fact.text.endswith("."), f"{name}: {key}"


def test_an_event_cannot_be_changed() -> None:
    event = Event(name="x", time=0, run_id="", node_rank=0, round=0)
    assert isinstance(event.facts, MappingProxyType)
    with pytest.raises(AttributeError):
        event.round = 1  # type: ignore[misc]


def chapter(name: str) -> str:
    kind = SCHEMA[name]
    lines = [f"### {name}", "", kind.text, "", "| fact | type | |", "|---|---|---|"]
    for key, fact in kind.facts.items():
        choices = ", ".join(f'"{choice}"' for choice in fact.choices)
        text = f"{fact.text} One of {choices}." if choices else fact.text
        lines.append(f"| `{key}` | {fact.type} | {text} |")
    return "\n".join(lines) + "\n"


def test_the_document_tells_what_the_schema_says() -> None:
    written = "\n".join(chapter(name) for name in SCHEMA)
    _, marker, told = DOC.read_text().partition("## The events\n\n")
    assert marker, "docs/events.md lacks its chapter"
    assert told == written, "docs/events.md, from '## The events' on, must be:\n\n" + written
