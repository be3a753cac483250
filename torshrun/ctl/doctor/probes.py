"""Runs probes in processes of their own, as they may load heavy libraries, crash, or hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

_MOST_SAID = 300
"""The most characters of the last line of a failed probe."""
_MARK = "doctor-probe:"


@dataclass(frozen=True, slots=True)
class Probed:
    """Holds the outcome of a probe."""

    outcome: Literal["ok", "failed", "hung"]
    said: str = ""
    """The last line that it wrote, or the reason why it failed."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The facts that a Python probe reported."""


def python(code: str, seconds: float) -> Probed:
    """Run `code` in this Python. It reports facts by calling report(name=value, ...)."""
    whole = (
        "import ctypes, json, sys\n"
        "ctypes.CDLL(None).prctl(1, 9)\n"  # PR_SET_PDEATHSIG: it ends with the doctor
        f"def report(**facts): print({_MARK!r} + json.dumps(facts), flush=True)\n{code}"
    )
    done = program([sys.executable, "-P", "-c", whole], seconds, every_line=True)
    lines = [line for line in done.said.splitlines() if line.startswith(_MARK)]
    if done.outcome != "ok" or not lines:
        return Probed(done.outcome, _last_line(done.said))
    with suppress(ValueError, RecursionError):
        facts = json.loads(lines[-1].removeprefix(_MARK))
        return Probed("ok", "", facts if isinstance(facts, dict) else {})
    return Probed("failed", "what it reported cannot be read")


def program(
    argv: Sequence[str], seconds: float, *, every_line: bool = False, given: str = ""
) -> Probed:
    """Run a program, which reads `given`. Kill it with its children if it is not done within
    `seconds`."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Probed("failed", error.strerror or str(error))
    with process:
        try:
            said, _ = process.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(
                process.pid, signal.SIGKILL
            )  # it was not reaped yet, so that its pid is not reused
            return Probed("hung", f"not done after {seconds:g} s")
    told = said if every_line else _last_line(said)
    if process.returncode == 0:
        return Probed("ok", told)
    return Probed("failed", told or _ended(process.returncode))


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][-_MOST_SAID:] if lines else ""


def _ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
