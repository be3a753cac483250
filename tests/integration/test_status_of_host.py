"""torshctl status of jobs that meet nowhere: where each of their ranks stands."""

from __future__ import annotations

import re
import subprocess
import sys

from support.launcher import Launcher
from support.processes import soon

SCRIPT = """
import torsh_runtime as tr
tr.init_process_group()
tr.report_step(3)
if rank == 1:
    os.read(os.pipe()[0], 1)
tr.barrier()
"""


def test_each_rank_of_a_job_on_this_host_is_shown_where_it_stands(torshrun: Launcher) -> None:
    path = torshrun.script(SCRIPT)
    job = torshrun.start("--nproc-per-node=2", path)
    environ = {name: value for name, value in torshrun.environ.items() if "RDZV" not in name}

    def told() -> list[str]:
        command = [sys.executable, "-m", "torshrun.ctl", "status"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        starts = [n for n, line in enumerate(lines) if line.startswith(f"pid {job.pid},")]
        return lines[starts[0] : starts[0] + 3] if starts else []

    def is_told() -> bool:
        lines = told()
        if len(lines) < 3 or "2 workers here: " not in lines[0] or path not in lines[0]:
            return False
        first = re.fullmatch(
            r"  rank 0 \(pid \d+, step 3\): in barrier\(\) \(operation 1\)", lines[1]
        )
        last = "in no collective, last in init_process_group(); waits for data from a pipe"
        return bool(first) and last in lines[2]

    assert soon(is_told, 60), told()
