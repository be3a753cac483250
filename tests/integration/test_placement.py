"""Workers run where --numa-binding says, and see the GPU that --virtual-local-rank gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import json, os, threading
names = ("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
found = []
thread = threading.Thread(target=lambda: found.extend(os.sched_getaffinity(0)))
thread.start()
thread.join()
print(json.dumps([{name: os.environ.get(name) for name in names}, sorted(found)]))
"""
CPUS = sorted(os.sched_getaffinity(0))


def run(folder: Path, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "show.py").write_text(SHOW)
    cleared = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    inherited = {name: value for name, value in os.environ.items() if name not in cleared}
    return subprocess.run(
        [sys.executable, "-m", "torshrun", *argv, "show.py"],
        env={**inherited, **environ},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def seen(folder: Path, *argv: str, **environ: str) -> list[tuple[dict[str, str], list[int]]]:
    """Each rank's variables, and the processors of a thread that it started."""
    ended = run(folder, *argv, **environ)
    assert ended.returncode == 0, ended.stderr
    workers = [json.loads(line.partition("] ")[2]) for line in ended.stdout.splitlines()]
    return sorted(workers, key=lambda worker: int(worker[0]["RANK"]))


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_exclusive_workers_share_no_cpu(tmp_path: Path) -> None:
    (_, first), (_, second) = seen(tmp_path, "--nproc-per-node=2", "--numa-binding=exclusive")
    assert first
    assert second
    assert not set(first) & set(second)
    assert set(first) | set(second) <= set(CPUS)


def test_workers_are_not_bound_unless_asked_for(tmp_path: Path) -> None:
    assert [cpus for _, cpus in seen(tmp_path, "--nproc-per-node=2")] == [CPUS, CPUS]


def test_a_binding_counts_for_the_threads(tmp_path: Path) -> None:
    ((variables, cpus),) = seen(tmp_path, "--numa-binding=node")
    assert variables["OMP_NUM_THREADS"] == str(len(cpus))


def test_more_exclusive_workers_than_cpus_start_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, f"--nproc-per-node={len(CPUS) + 1}", "--numa-binding=exclusive")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("torshrun: error: --numa-binding exclusive")
    assert "Traceback" not in ended.stderr


def test_virtual_local_ranks(tmp_path: Path) -> None:
    workers = seen(
        tmp_path, "--nproc-per-node=2", "--virtual-local-rank", CUDA_VISIBLE_DEVICES="5,3"
    )
    places = [(own["LOCAL_RANK"], own["CUDA_VISIBLE_DEVICES"]) for own, _ in workers]
    assert places == [("0", "5"), ("0", "3")]


def test_too_few_gpus_start_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, "--nproc-per-node=3", "--virtual-local-rank", CUDA_VISIBLE_DEVICES="5,3")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("torshrun: error: --virtual-local-rank")
