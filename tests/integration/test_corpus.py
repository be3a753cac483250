"""Some of the corpus of failing jobs: torshrun names whose fault it is, and of what kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import marked, soon

CORPUS = Path(__file__).resolve().parents[2] / "benchmarks" / "corpus.py"
CASES = (
    "crash/segfault_in_thread",
    "crash/stack_overflow",
    "files/cpu_time",
    "files/disk_full",
    "memory/leak_in_cgroup",
    "memory/refused",
    "nodes/worker_of_another_node",
    "options/order",
    "ports/each_rank_serves",
    "python/import_missing",
    "python/one_rank",
    "python/wrong_argument",
    "signals/kill",
    "strangers/log_of_zero",
    "strangers/logged_as_json",
    "strangers/metrics_port_shared",
    "strangers/rank_of_hostname",
    "waiting/pipe",
)
TIMEOUT = 600
"""Seconds after which the benchmark hangs, however busy the machine is."""


Entries = dict[str, dict[str, Any]]
"""By case: what is known of it, and what torshrun said."""


def score(folder: Path, *options: str) -> Entries:
    """Of the cases that could be run here."""
    record = folder / "said.json"
    command = [sys.executable, str(CORPUS), *options, "--json", str(record)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return {entry["case"]: entry for entry in json.loads(record.read_text())["torshrun"]}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Entries:
    only = [word for name in CASES for word in ("--only", name)]
    return score(tmp_path_factory.mktemp("corpus"), *only, "--jobs", "2")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_whose_fault_and_of_what_kind(name: str, said: Entries) -> None:
    if name not in said:
        pytest.skip("it needs what this machine has not got: root, or a writable cgroup")
    entry = said[name]
    assert entry["culprit"], entry
    assert entry["kind"], entry


@pytest.mark.slow
def test_nobody_is_blamed_for_sure_by_mistake(said: Entries) -> None:
    certain = {name for name, entry in said.items() if entry["certainty"] == "certain"}
    assert certain
    assert all(said[name]["culprit"] for name in certain)


def test_a_job_that_does_not_end_is_ended_and_counts_as_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = os.urandom(8).hex()
    monkeypatch.setenv("MARK", mark)
    (tmp_path / "area").mkdir()
    (tmp_path / "area" / "sleeps.py").write_text(
        '"""It sleeps.\n\nculprit: 0\nkind: stuck\nhint: hung\nseconds: 1\n"""\n'
        "import time\ntime.sleep(600)\n"
    )
    entry = score(tmp_path, "--folder", str(tmp_path), "--hang-timeout", "0")["area/sleeps"]
    assert entry["hung"]
    assert not entry["culprit"]
    assert soon(lambda: not marked(mark)), marked(mark)
