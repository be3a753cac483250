"""torshctl doctor as a command, and doctors that serve."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

GUARD = 120.0
COMMAND = (sys.executable, "-P", "-m", "torshrun.ctl", "doctor")
_OURS = re.compile(r"(TORSH|PET|MASTER|NCCL|GLOO)_\w+|RANK|WORLD_SIZE|PYTHONPATH")


def clean(**variables: str) -> dict[str, str]:
    """The environment without what says something to the doctor, and with these variables."""
    kept = {name: value for name, value in os.environ.items() if not _OURS.fullmatch(name)}
    return {**kept, **variables}


def run_doctor(
    *argv: str, within: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Its exit code, and what it says in JSON."""
    ended = subprocess.run(
        [*within, *COMMAND, "--json", *argv],
        env=dict(environ or clean()),
        capture_output=True,
        text=True,
        timeout=GUARD,
    )
    assert ended.stdout, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    return ended.returncode, told


def findings(told: Mapping[str, Any], area: str) -> dict[str, dict[str, str]]:
    """Those of one area, by what was looked at."""
    return {each["what"]: each for each in told["findings"] if each["area"] == area}


@contextmanager
def serving(
    listen: str, environ: Mapping[str, str], within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A doctor that serves there, while the block lasts."""
    process = subprocess.Popen(
        [*within, *COMMAND, "--serve", listen],
        env=dict(environ),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        line = process.stderr.readline()
        assert "serves" in line, line
        yield process
    finally:
        process.kill()
        process.communicate(timeout=GUARD)
