"""How many more processes there may be, on trees made up for the purpose and for another user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torshrun.topology.tasks import available_tasks

V2 = "25 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "26 1 0:2 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
SOMEBODY = 54321
ROOT = os.geteuid() == 0


@pytest.mark.parametrize(
    ("cgroup", "mounts", "top"),
    [("0::/pod/box", V2, "sys/fs/cgroup"), ("4:pids:/pod/box", V1, "sys/fs/cgroup/pids")],
)
@pytest.mark.parametrize(
    ("limits", "expected"), [(("50", "max"), 40), (("50", "45"), 25), (("5", "max"), 0)]
)
def test_the_least_that_a_cgroup_has_left(
    tmp_path: Path, cgroup: str, mounts: str, top: str, limits: tuple[str, str], expected: int
) -> None:
    own = tmp_path / top / "pod" / "box"
    own.mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{cgroup}\n")
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    for folder, most, used in zip((own, own.parent), limits, ("10", "20"), strict=True):
        (folder / "pids.max").write_text(f"{most}\n")
        (folder / "pids.current").write_text(f"{used}\n")
    assert available_tasks(tmp_path) == expected


def test_there_need_be_no_limit(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert available_tasks(tmp_path) > 0


@pytest.mark.skipif(not ROOT, reason="needs root")
def test_threads_count_for_their_user() -> None:
    text = (
        "import ctypes, os, resource, threading, time\n"
        "from torshrun.topology.tasks import available_tasks\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))\n"
        f"os.setgroups([]), os.setuid({SOMEBODY})\n"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"
        "for _ in range(9): threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n"
        "print(available_tasks())\n"
    )
    told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert told.stdout == "90\n", told.stderr
