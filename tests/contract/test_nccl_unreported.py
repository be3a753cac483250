"""A collective that fails behind a stream which waited for it is not silent: real processes, whose
GPUs are fake ones."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torsh_runtime.backends.nccl import unreported
from torsh_runtime.errors import ConfigError

PROGRAM = Path(__file__).parents[1] / "support" / "gpu_failure.py"
WHY = "all_reduce (operation 2 of the group) timed out after 0.5 s waiting for rank(s) 1"


def run(
    mode: str, choice: str, folder: Path, stderr: int = subprocess.PIPE
) -> tuple[subprocess.CompletedProcess[str], str]:
    """How the program ended, and the message in its error file, empty if it has none."""
    path = folder / "error.json"
    environ = {"TORSH_ON_GPU_FAILURE": choice, "TORCHELASTIC_ERROR_FILE": str(path)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), mode],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=60,
        check=False,
    )
    document = json.loads(path.read_text()) if path.exists() else {"message": {"message": ""}}
    return done, document["message"]["message"]


def test_the_process_ends_and_says_why(tmp_path: Path) -> None:
    done, message = run("stay", "end", tmp_path)
    assert done.returncode == -signal.SIGABRT
    assert WHY in done.stderr
    assert "TORSH_ON_GPU_FAILURE=raise" in done.stderr
    assert message.startswith(f"CommTimeout: {WHY}")


def test_the_reason_is_on_stderr_also_where_python_has_another_one(tmp_path: Path) -> None:
    done, _ = run("hidden", "end", tmp_path)
    assert done.returncode == -signal.SIGABRT
    assert WHY in done.stderr


def test_the_process_ends_also_if_nobody_reads_its_stderr(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)))  # it is full
    try:
        done, message = run("unread", "end", tmp_path, writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == -signal.SIGABRT
    assert message.startswith(f"CommTimeout: {WHY}")


@pytest.mark.parametrize("mode", ["call", "close"])
def test_the_groups_next_call_and_its_end_fail_if_asked_for(mode: str, tmp_path: Path) -> None:
    done, _ = run(mode, "raise", tmp_path)
    assert done.stdout == "got [7.0, 7.0, 7.0, 7.0]\n"
    assert done.returncode == 1
    assert f"CommTimeout: {WHY}" in done.stderr


def test_closing_waits_for_what_is_under_way(tmp_path: Path) -> None:
    done, _ = run("early", "raise", tmp_path)
    assert done.returncode == 1
    assert f"CommTimeout: {WHY.replace('0.5', '1')}" in done.stderr


def test_closing_does_not_hold_up_a_program_that_an_exception_ends(tmp_path: Path) -> None:
    """Its operation has 30 s."""
    done, _ = run("exception", "raise", tmp_path)
    assert done.returncode == 1
    assert "ArithmeticError: the program's own" in done.stderr
    assert "CommTimeout" not in done.stderr


def test_a_program_that_asks_nothing_more_fails_at_its_end(tmp_path: Path) -> None:
    done, message = run("leave", "raise", tmp_path)
    assert done.returncode == 1
    assert f"has failed: {WHY}" in done.stderr
    assert message.startswith(f"CommTimeout: {WHY}")


def test_other_choices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSH_ON_GPU_FAILURE", "ignore")
    with pytest.raises(ConfigError, match="must be one of end, raise, not 'ignore'"):
        unreported.ends_process()
