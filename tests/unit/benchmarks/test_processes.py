import sys
import time
from pathlib import Path

import pytest

from benchmarks.processes import MARK, Program, RunError, marked, run

# A program whose grandchild leaves the process group and outlives it.
ESCAPE = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(os.environ[sys.argv[1]], flush=True)
"""


def python(code: str, *arguments: str) -> Program:
    return Program([sys.executable, "-c", code, *arguments], Path("/"))


def test_output_comes_back() -> None:
    assert run(python("print('yes')"), timeout=30) == "yes\n"


def test_a_failure_shows_what_was_written_last() -> None:
    with pytest.raises(RunError, match="exit status 3: why it failed"):
        run(python("import sys; print('why it failed'); sys.exit(3)"), timeout=30)


def test_a_program_that_hangs_is_ended_at_its_timeout() -> None:
    start = time.monotonic()
    with pytest.raises(RunError, match="not done"):
        run(python("import time; time.sleep(60)"), timeout=0.3)
    assert time.monotonic() - start < 10


def test_what_left_the_process_group_is_ended_too() -> None:
    with pytest.raises(RunError) as failure:
        run(python(ESCAPE, MARK), timeout=2.0)
    mark = str(failure.value).rsplit(maxsplit=1)[-1]
    assert len(mark) == 32
    deadline = time.monotonic() + 5
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert marked(mark) == []
