"""Jobs that hang and are stopped from outside: what is said of where their ranks stood."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.launcher import Launcher

from torshrun import exit_codes

SOONER = """
import sys
from torshrun.agent import standstill
standstill.SECONDS, standstill._BETWEEN = 1.5, 0.2
look = standstill.Standstill._look
def noted(self, a_round):
    found = look(self, a_round)
    if found:
        open("seen", "w").close()
    return found
standstill.Standstill._look = noted
from torshrun.__main__ import main
sys.exit(main())
"""
SLEEPS = """
import torsh_runtime as tr
tr.init_process_group()
tr.barrier()
def load():
    time.sleep(60)
load() if rank == 1 else tr.barrier()
"""


def stopped(torshrun: Launcher, script: str, signo: int) -> tuple[int, str]:
    """Exit code and stderr of a job that gets the signal when its standstill has been seen."""
    path = torshrun.folder / "soon.py"
    path.write_text(SOONER)
    with subprocess.Popen(
        [sys.executable, str(path), "--nproc-per-node=3", torshrun.script(script)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=torshrun.folder,
        env=torshrun.environ,
    ) as job:
        torshrun.wait_for("seen")
        job.send_signal(signo)
        _, err = job.communicate(timeout=30)
    return job.returncode, err


@pytest.mark.parametrize(
    ("signo", "code"), [(signal.SIGTERM, exit_codes.PREEMPTED), (signal.SIGINT, 130)]
)
def test_who_kept_others_waiting_is_told_and_the_code_is_that_of_the_signal(
    torshrun: Launcher, signo: int, code: int
) -> None:
    ended, err = stopped(torshrun, SLEEPS, signo)
    assert ended == code, err
    assert "torshrun: when the signal came: no progress for" in err
    assert "ranks 0, 2 wait in barrier() (operation 2) for rank 1" in err
    assert "ranks 0, 2 waited in barrier() (operation 2) for rank 1, which did not come." in err
    assert "rank 1: in no collective, at load (train.py:" in err
    assert "failed first" not in err
