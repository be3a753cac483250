"""--hang-timeout with real workers: what is found, what is said, what is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import marked, soon

from torshrun import exit_codes
from torshrun.health.stacks import find_program

PATIENCE = 60
CLEARED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "PYTHONUNBUFFERED")


class Job:
    """Runs a script under torshrun in a directory of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = os.urandom(8).hex()
        kept = {name: value for name, value in os.environ.items() if name not in CLEARED}
        self.environ = {**kept, "MARK": self.mark}

    def start(self, script: str, *options: str) -> subprocess.Popen[str]:
        path = self.folder / "train.py"
        head = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n"
        path.write_text(head + textwrap.dedent(script))
        return subprocess.Popen(
            [sys.executable, "-m", "torshrun", "--nproc-per-node", "2", *options, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environ,
        )

    def run(self, script: str, *options: str) -> tuple[int, str]:
        """Exit code and stderr."""
        with self.start(script, "--hang-timeout", "2", "--shutdown-timeout", "5", *options) as job:
            try:
                _, err = job.communicate(timeout=PATIENCE)
            finally:
                job.kill()
        return job.returncode, err


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    assert soon(lambda: not marked(made.mark)), marked(made.mark)


def test_the_rank_that_does_not_come_is_named(job: Job) -> None:
    code, err = job.run(
        """
        import torsh_runtime as tr
        tr.init_process_group()
        tr.report_step(6)
        tr.barrier()
        def forever():
            while True: pass
        tr.barrier() if rank == 0 else forever()
        """
    )
    assert code == exit_codes.HUNG, err
    assert "rank 0 waits in barrier() (operation 2) for rank 1" in err
    assert "rank 1: not in it yet, last in barrier() (operation 1); step 6" in err


def test_a_stopped_rank_is_named(job: Job) -> None:
    code, err = job.run(
        """
        import torsh_runtime as tr
        tr.init_process_group()
        if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)
        tr.barrier()
        """
    )
    assert code == exit_codes.HUNG, err
    assert "for rank 1" in err
    assert "its process is stopped" in err


def test_the_report_shows_where_the_code_stands(job: Job) -> None:
    code, err = job.run("def a_quiet_place():\n    time.sleep(60)\na_quiet_place()")
    assert code == exit_codes.HUNG, err
    assert "no output and no CPU use of any worker" in err
    assert "a_quiet_place" in err  # by py-spy, or else by faulthandler
    if find_program() and "SYS_PTRACE" not in err:
        assert "stack of ranks 0-1, most recent call first" in err


def test_a_hang_uses_a_restart(job: Job) -> None:
    script = """
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": time.sleep(60)
        """
    code, err = job.run(script, "--max-restarts", "1")
    assert code == 0, err
    assert "no progress for" in err


def test_silent_work_is_no_hang(job: Job) -> None:
    """Nor is one idle rank beside it."""
    code, err = job.run(
        """
        end = time.monotonic() + 5
        while time.monotonic() < end:
            if rank == 1: time.sleep(0.1)
        """
    )
    assert (code, "no progress" in err) == (0, False), err


def test_idle_workers_that_write_do_not_hang(job: Job) -> None:
    code, err = job.run("for _ in range(10): print('.', flush=True); time.sleep(0.5)")
    assert code == 0, err


def test_a_stopped_agent_does_not_take_its_own_absence_for_a_hang(job: Job) -> None:
    script = "print('begun', flush=True); time.sleep(5)"
    with job.start(script, "--hang-timeout", "2") as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        time.sleep(1)  # it has seen them idle
        os.kill(agent.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(agent.pid, signal.SIGCONT)
        _, err = agent.communicate(timeout=PATIENCE)
    assert agent.returncode == 0, err


def test_without_the_option_nothing_counts_as_a_hang(job: Job) -> None:
    with job.start("time.sleep(3)") as agent:
        _, err = agent.communicate(timeout=PATIENCE)
    assert (agent.returncode, err) == (0, "")
