"""The status line: what it says, in how much room, and when."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.monitoring.pace import Pace
from torshrun.live.snapshot import Snapshot
from torshrun.live.status_line import elapsed, render

NOW = 1000.0


def a_snapshot(**facts: Any) -> Snapshot:
    values: dict[str, Any] = {
        "run_id": "j",
        "role": "default",
        "started": NOW - 751,
        "heartbeat": NOW,
        "state": "running",
        "pids": (1, 2, 3, 4),
        "steps": (1231, 1230, 1250, None),
        "restarts": 1,
    }
    return Snapshot(**values | facts)


def line(width: int = 200, **facts: Any) -> str:
    return render(a_snapshot(**facts), NOW, width, color=False)


def test_the_line() -> None:
    assert line() == "torshrun  4/4 workers  step 1,230  round 0  1 restart  00:12:31"


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"restarts": 0, "steps": ()}, "torshrun  4/4 workers  round 0  00:12:31"),
        ({"restarts": 2, "round": 5, "steps": (0,)}, "step 0  round 5  2 restarts"),
        ({"state": "stopping", "pids": (0, 7)}, "torshrun  stopping  1/2 workers"),
        ({"num_nodes": 3}, "round 0  3 nodes"),
        ({"last_failure": "rank 1: boom"}, "00:12:31  rank 1: boom"),
    ],
)
def test_what_is_said(facts: dict[str, Any], text: str) -> None:
    assert text in line(**facts)


@pytest.mark.parametrize(
    ("pace", "text"),
    [
        (Pace(120, 1000, None, 3.2, None, {"loss": 0.42}), "step 120/1,000  3.2 it/s, loss 0.42"),
        (Pace(120, 1000), "step 120/1,000  round"),
        (Pace(120, None, None, 0.05), "step 120  0.05 it/s  round"),
        (Pace(120, 50, 7, 2.0), "step 7/50  2 it/s"),
        (Pace(None, None, 7, 2.0, None, {"\x1b[2J": 1.0}), "step 120  2 it/s  round"),
    ],
)
def test_the_pace(pace: Pace, text: str) -> None:
    assert text in line(pace=pace, steps=(120, 130))


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (63, "torshrun  4/4 workers  step 1,230  round 0  1 restart  00:12:31"),
        (62, "torshrun  4/4 workers  step 1,230  1 restart  00:12:31"),
        (53, "4/4 workers  step 1,230  1 restart  00:12:31"),
        (40, "4/4 workers  step 1,230  00:12:31"),
        (32, "4/4 workers  00:12:31"),
        (11, "4/4 workers"),
        (6, "4/4 w…"),
        (1, "…"),
        (0, "…"),
        (-3, "…"),
    ],
)
def test_narrow_terminals_get_what_matters_most(width: int, text: str) -> None:
    assert line(width) == text


def test_at_40_columns_the_state_goes_last() -> None:
    assert line(40, state="restarting", pids=(0,) * 64) == "restarting  0/64 workers  00:12:31"


def test_a_failure_is_cut_short_but_not_to_nothing() -> None:
    long = "rank 3 failed: ValueError: no such thing"
    room = len(line()) + len("  ")
    assert line(room + 16, last_failure=long) == line() + "  rank 3 failed: …"
    assert line(room + 15, last_failure=long) == line()
    assert line(70, last_failure="oops") == line() + "  oops"


@given(st.text(max_size=60), st.integers(-1, 120))
def test_the_line_never_wraps_nor_moves_the_cursor(failure: str, width: int) -> None:
    text = line(width, last_failure=failure)
    assert len(text) <= max(width, 1)
    assert text.replace("…", "").isascii(), "what takes two columns, or none"
    assert text.isprintable()


def test_escape_codes_of_a_worker_are_taken_out() -> None:
    failure = "\x1b[1;31mred\x1b[0m\x1b]0;title\x07\n\tend\x1b[2J"
    assert line(last_failure=failure).endswith("00:12:31  red  end")


def test_brackets_are_no_markup() -> None:
    assert line(last_failure="KeyError: [bold] :smile:").endswith("KeyError: [bold] :smile:")


def test_colors_change_nothing_but_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")  # the caller has decided
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "7")
    colored = render(a_snapshot(), NOW, 80, color=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == line(80)
    assert colored.startswith("\x1b[1;36mtorshrun\x1b[0m  ")
    assert colored.endswith("\x1b[0m")


def test_without_colors_there_are_no_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" not in line(last_failure="rank 1 failed")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "00:00:00"), (59.9, "00:00:59"), (3600, "01:00:00"), (93784, "1d 02:03:04")],
)
def test_elapsed(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text


def test_a_young_job_has_no_line() -> None:
    assert render(a_snapshot(started=NOW), NOW + 0.99, 80, color=False) == ""
    assert "00:00:01" in render(a_snapshot(started=NOW), NOW + 1, 80, color=False)


def test_nothing_heavy_is_loaded_until_it_is_needed() -> None:
    heavy = ("prometheus_client", "http.server", "asyncio", "psutil", "json", "subprocess")
    code = f"import sys, torshrun.live; print([m for m in {heavy} if m in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout == "[]\n"
