"""A command for each notification never holds anybody up, and nothing of it is left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.processes import soon

from torsh_runtime.events import Event
from torshrun.live import notifier
from torshrun.live.notifier import WAITING, Notifier

Start = Callable[[str], Notifier]


def an_event(number: int) -> Event:
    return Event(name="straggler_gone", time=number, run_id="j", node_rank=0, round=number)


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def start(complaints: list[str]) -> Iterator[Start]:
    made: list[Notifier] = []

    def begin(command: str) -> Notifier:
        made.append(Notifier(command, complaints.append))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def test_the_command_gets_each_event_in_order(
    start: Start, tmp_path: Path, complaints: list[str]
) -> None:
    file = tmp_path / "told"
    telling = start(f"cat >> {file}")
    for number in range(3):
        telling.notify(an_event(number))
    telling.close()
    assert [json.loads(line)["round"] for line in file.read_text().splitlines()] == [0, 1, 2]
    assert complaints == []


def test_what_takes_too_long_is_killed_with_all_that_it_started(
    start: Start, tmp_path: Path, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "RUN_SECONDS", 0.2)
    monkeypatch.setattr(notifier, "CLOSE_SECONDS", 1.0)
    file = tmp_path / "late"
    telling = start(f"cat > {tmp_path}/in; (sleep 30; touch {file}) & wait")
    began = time.monotonic()
    for number in range(2 * WAITING):  # which waits for nobody
        telling.notify(an_event(number))
    assert time.monotonic() - began < 5
    assert soon(lambda: len(complaints) == 1)
    telling.close()
    assert not file.exists()


def test_what_was_killed_is_no_zombie(
    start: Start, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "RUN_SECONDS", 0.2)
    telling = start("sleep 30")
    telling.notify(an_event(0))
    assert soon(lambda: len(complaints) == 1)
    telling.close()
    assert "was killed" in complaints[0]
    assert not psutil.Process().children()


@pytest.mark.parametrize("command", ["exit 3", "/nonexistent/command"])
def test_that_it_fails_is_told_once(start: Start, complaints: list[str], command: str) -> None:
    telling = start(command)
    for number in range(3):
        telling.notify(an_event(number))
    assert soon(lambda: len(complaints) == 1)
    telling.close()
    assert len(complaints) == 1
    assert command in complaints[0]


def test_one_that_reads_nothing_and_ends_is_no_error(start: Start, complaints: list[str]) -> None:
    telling = start("true")
    telling.notify(an_event(0))
    telling.close()
    assert complaints == []
