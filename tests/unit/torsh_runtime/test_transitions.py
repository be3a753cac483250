"""Lines for changes of state: what they say, and that there are none unless somebody asks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from torsh_runtime import transitions
from torsh_runtime.errors import ConfigError

Begin = Callable[[str], list[str]]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Sets the level, and gives the lines of an agent."""
    lines: list[str] = []

    def begin_at(level: str) -> list[str]:
        monkeypatch.setenv(transitions.VARIABLE, level)
        transitions.begin(lines.append)
        return lines

    yield begin_at
    monkeypatch.delenv(transitions.VARIABLE, raising=False)
    transitions.begin()


def test_a_line_says_when_and_what_and_why_and_where(begin: Begin) -> None:
    lines = begin("debug")
    transitions.note("agent", "running", "stopping", "failure", round=3, node=1, group="")
    time, line = lines[0].split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert line == "DEBUG torsh.agent: running -> stopping (failure; round 3, node 1)"


def test_a_machine_is_noted_when_it_changes_and_only_then(begin: Begin) -> None:
    lines = begin("DEBUG")
    machine = transitions.Machine("grant", "none")
    for state in ("held", "held", "none"):
        machine.become(state)
    assert [line.split("grant: ")[1] for line in lines] == ["none -> held", "held -> none"]


def test_what_fails_is_noted_with_its_error_in_one_line(begin: Begin) -> None:
    lines = begin("debug")
    machine = transitions.Machine("commits", "idle")
    with machine.during("committing", "committed"):
        pass
    with pytest.raises(OSError, match="room"), machine.during("committing", "committed"):
        raise OSError("no\nroom")
    changes = [line.split("commits: ")[1] for line in lines]
    assert changes == [
        "idle -> committing",
        "committing -> committed",
        "committed -> committing",
        "committing -> failed (OSError: no room)",
    ]


@pytest.mark.parametrize("level", ["", "info", "critical"])
def test_at_other_levels_nothing_is_written(begin: Begin, level: str) -> None:
    lines = begin(level)
    transitions.note("agent", "running", "stopping")
    assert lines == []
    assert transitions.is_on() is bool(level)


def test_a_word_that_is_no_level_is_refused_with_the_levels(begin: Begin) -> None:
    with pytest.raises(ConfigError, match=r"^TORSH_LOG=verbose is no level: give debug, info, "):
        begin("verbose")


def test_a_worker_tells_its_round_and_rank_on_stderr() -> None:
    code = "from torsh_runtime.transitions import note; note('meeting', 'alone', 'met', ranks=2)"
    environ = {"TORSH_LOG": "debug", "RANK": "1", "TORSH_ROUND": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert done.stderr.endswith(" torsh.meeting: alone -> met (ranks 2, round 4, rank 1)\n")


def test_a_programs_own_logging_neither_repeats_nor_hides_the_lines() -> None:
    code = (
        "import logging; logging.basicConfig(level='ERROR')\n"
        "from torsh_runtime.transitions import note; note('meeting', 'alone', 'met')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"TORSH_LOG": "debug"}, capture_output=True, text=True
    )
    assert done.stderr.count("alone -> met") == done.stderr.count("\n") == 1


def test_nobody_who_does_not_ask_loads_logging() -> None:
    code = (
        "import sys, torsh_runtime; from torsh_runtime.transitions import Machine\n"
        "Machine('a', 'b').become('c'); print({'logging', 'dataclasses'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
