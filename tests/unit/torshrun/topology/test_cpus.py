"""How many processors may be used, on trees made up for the purpose and in a cgroup of our own."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from torshrun.topology.cpus import allowed_cpus, cpu_quota, told_of_binding, usable_cpus

V2 = "25 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "26 1 0:2 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
CPU_V1 = Path("/sys/fs/cgroup/cpu")


def tree(root: Path, cgroup: str, mounts: str, files: dict[str, str]) -> Path:
    files = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts, **files}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def version_2(root: Path, *quotas: str) -> Path:
    """A cgroup two levels below the root, and the quotas of all three, innermost first."""
    folders = ("sys/fs/cgroup/pod/box", "sys/fs/cgroup/pod", "sys/fs/cgroup")
    files = {f"{folder}/cpu.max": quota for folder, quota in zip(folders, quotas, strict=False)}
    return tree(root, "0::/pod/box\n", V2, files)


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        (("max 100000\n",), math.inf),
        (("250000 100000\n",), 2.5),
        (("max 100000\n", "400000 100000\n"), 4),
        (("400000 100000\n", "150000 50000\n", "max 100000\n"), 3),
    ],
)
def test_version_2_counts_the_strictest_of_the_whole_path(
    tmp_path: Path, quotas: tuple[str, ...], expected: float
) -> None:
    assert cpu_quota(version_2(tmp_path, *quotas)) == expected


def test_version_1_beside_an_empty_version_2(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct"
    files = {
        f"{folder}/cpu.cfs_quota_us": "-1\n",
        f"{folder}/cpu.cfs_period_us": "100000\n",
        f"{folder}/job/cpu.cfs_quota_us": "75000\n",
        f"{folder}/job/cpu.cfs_period_us": "50000\n",
    }
    cgroup = "3:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n"
    assert cpu_quota(tree(tmp_path, cgroup, V2.replace("cgroup ", "cgroup/u ", 1) + V1, files)) == (
        1.5
    )


@pytest.mark.parametrize(
    "nonsense", ["", "max\n", "0 0\n", "-5 100000\n", "1e9 1\n", "\0", "100000 0\n", "² ³\n"]
)
def test_nonsense_is_no_limit(tmp_path: Path, nonsense: str) -> None:
    assert cpu_quota(version_2(tmp_path, nonsense)) == math.inf


def test_no_cgroups_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) == math.inf
    assert usable_cpus({}, tmp_path) == len(allowed_cpus())


@pytest.mark.parametrize(("quota", "number"), [(20_000, 1), (100_000, 1), (199_999, 1)])
def test_a_quota_is_rounded_down_but_never_to_none(tmp_path: Path, quota: int, number: int) -> None:
    assert usable_cpus({}, version_2(tmp_path, f"{quota} 100000\n")) == number


@pytest.fixture
def limited() -> Iterator[Path]:
    """A real cgroup, of version 1, with the time of one and a half processors."""
    folder = CPU_V1 / f"torsh-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "cpu.cfs_period_us").write_text("100000")
        (folder / "cpu.cfs_quota_us").write_text("150000")
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"needs a cgroup of version 1 to write to: {error}")
    yield folder
    folder.rmdir()


def test_in_a_real_cgroup(limited: Path) -> None:
    def enter() -> None:
        (limited / "cgroup.procs").write_text(str(os.getpid()))

    code = "from torshrun.topology.cpus import *; print(cpu_quota(), usable_cpus({}))"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        preexec_fn=enter,
        timeout=60,
    )
    assert (ended.stdout, ended.stderr) == ("1.5 1\n", "")


@pytest.mark.parametrize(
    ("allowed", "step", "is_told"),
    [
        ({2, 10}, {"SLURM_STEP_ID": "0", "SLURM_CPUS_ON_NODE": "8"}, True),
        ({2}, {"SLURM_STEP_ID": "0", "SLURM_CPUS_ON_NODE": "8"}, True),
        ({2}, {"SLURM_STEP_ID": "0", "SLURM_CPUS_ON_NODE": "2"}, False),  # --hint=nomultithread
        ({2, 3}, {"SLURM_STEP_ID": "0", "SLURM_CPUS_ON_NODE": "8"}, False),
        ({2}, {"SLURM_STEP_ID": "0", "SLURM_CPUS_ON_NODE": "1"}, False),
        ({2}, {"SLURM_STEP_ID": "0"}, False),
        ({2}, {"SLURM_CPUS_ON_NODE": "8"}, False),  # taskset in a batch script
    ],
)
def test_a_task_that_is_bound_to_one_core_of_several_is_told_so(
    tmp_path: Path, allowed: set[int], step: dict[str, str], is_told: bool
) -> None:
    folder = tmp_path / "sys/devices/system/cpu/cpu2/topology"
    folder.mkdir(parents=True)
    (folder / "thread_siblings_list").write_text("2,10\n")
    told = told_of_binding(step, frozenset(allowed), tmp_path)
    assert bool(told) == is_told
    if told:
        assert f"share {len(allowed)} of the 8 processors" in told
        assert "SRUN_CPUS_PER_TASK=8" in told
