"""torshrun as process 1 of a container, which is given what other programs there leave behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.launcher import Launcher
from support.processes import soon

ISOLATE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
NEEDED = os.geteuid() == 0 and shutil.which("unshare") and shutil.which("nsenter")


def children(pid: int) -> dict[int, str]:
    """Pids and states of a process's children."""
    found = {}
    for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            found[int(text)] = Path(f"/proc/{text}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
    return found


@pytest.mark.skipif(not NEEDED, reason="needs root, unshare and nsenter")
def test_it_reaps_what_others_leave_and_not_its_keeper(tmp_path: Path) -> None:
    with Launcher(tmp_path) as torshrun:
        script = torshrun.script(
            "open('up', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        )
        process = torshrun.start(script, within=ISOLATE)
        torshrun.wait_for("up")
        (agent,) = children(process.pid)
        (keeper,) = children(agent)
        # As somebody does who has a look by `docker exec` and leaves a daemon.
        left = f"until test -e {tmp_path}/over; do sleep 0.01; done"
        leave = f"for i in 1 2 3; do sh -c '{left}' & done"
        subprocess.run(
            ["nsenter", "-t", str(agent), "-p", "-m", "sh", "-c", leave],
            check=True,
            timeout=30,
            stdout=subprocess.DEVNULL,
        )
        assert soon(lambda: len(children(agent)) == 4)
        torshrun.make("over")
        assert soon(lambda: set(children(agent)) == {keeper})
        torshrun.make("go")
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 0
