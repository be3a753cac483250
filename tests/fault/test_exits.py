"""Processes that end while threads of theirs are in the compiled library."""

from __future__ import annotations

import subprocess
import sys

TRIES = 10
SCRIPT = """
import threading, time
from torsh_runtime.backends.native import _native

def come_and_go():
    while True:
        completions.wait(0.0)

completions = _native.Completions()
for _ in range(8):
    threading.Thread(target=come_and_go, daemon=True).start()
time.sleep(0.02)
"""


def test_threads_that_come_back_to_python_as_it_ends_do_not_abort_it() -> None:
    for _ in range(TRIES):  # without the guard two of three are aborted
        done = subprocess.run(
            [sys.executable, "-P", "-c", SCRIPT],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
