"""Programs that place ranks by another framework, each in a process of its own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

from support.processes import soon

TESTS = Path(__file__).parents[1]
_MARK = "TORSH_TEST_MARK"


def run(script: str, folder: Path, timeout: float, *arguments: str) -> str:
    """What the program of this module prints, which has to succeed and leave no process."""
    mark = secrets.token_hex(8)
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / script), str(folder), *arguments],
        env={**os.environ, _MARK: mark, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert soon(lambda: not _marked(mark), 10), f"left running: {_marked(mark)}"
    return done.stdout


def _marked(mark: str) -> list[str]:
    """The processes that the program, or what it has started, left behind."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
