"""A job that a file describes, from the command to its workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

JOB = """\
program: sh
arguments: [-c, 'echo "$RANK of $WORLD_SIZE $TORSHRUN_TEST $MASTER_PORT $0"', yes]
nproc_per_node: 2
max_restarts: 3
standalone: true
environment: {TORSHRUN_TEST: on}
"""


def torshrun(folder: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-P", "-m", "torshrun", *argv],
        cwd=folder,
        env={**kept, "TMPDIR": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_file_names_all_that_is_needed(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    done = torshrun(tmp_path, TORSH_CONFIG="job.yaml", TORSHRUN_TEST="off", MASTER_PORT="1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = sorted(done.stdout.splitlines())
    assert [line.split()[:5] for line in lines] == [
        [f"[{rank}]", str(rank), "of", "2", "on"] for rank in range(2)
    ]
    assert {line.split()[6] for line in lines} == {"yes"}
    assert "1" not in {line.split()[5] for line in lines}


def test_the_command_line_wins_over_the_file_and_that_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "show.py").write_text(
        "import os; print(os.environ['TORCHELASTIC_MAX_RESTARTS'], os.environ['WORLD_SIZE'])"
    )
    argv = ("--config", "job.yaml", "--nproc", "1", "show.py")
    done = torshrun(tmp_path, *argv, PET_MAX_RESTARTS="9", PET_NPROC_PER_NODE="9")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0] 3 1\n", "")


def test_a_mistake_in_the_file_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("max_restarts", "max_restart"))
    done = torshrun(tmp_path, "--config", "job.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "torshrun: error: job.yaml:4: there is no option max_restart; did you mean max_restarts?\n"
    )


def test_what_is_printed_is_a_file_for_the_same_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    printed = torshrun(tmp_path, "--config", "job.yaml", "--print-config", "--role", "r")
    (tmp_path / "printed.yaml").write_text(printed.stdout)
    plans = [
        torshrun(tmp_path, "--dry-run", *argv).stdout
        for argv in (("--config", "job.yaml", "--role", "r"), ("--config", "printed.yaml"))
    ]
    assert plans[0] == plans[1]
    assert "2 workers would start" in plans[0]
