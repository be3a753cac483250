"""Some of the corpus of failing jobs: torshrun names whose fault it is, and of what kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
    "waiting/pipe",
)
TIMEOUT = 600
"""Seconds after which the benchmark hangs, however busy the machine is."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What is known of each case that could be run here, and what torshrun said."""
    record = tmp_path_factory.mktemp("corpus") / "said.json"
    only = [word for name in CASES for word in ("--only", name)]
    command = [sys.executable, str(CORPUS), *only, "--jobs", "2", "--json", str(record)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return {entry["case"]: entry for entry in json.loads(record.read_text())["torshrun"]}


@pytest.mark.parametrize("name", CASES)
def test_whose_fault_and_of_what_kind(name: str, said: dict[str, dict[str, Any]]) -> None:
    if name not in said:
        pytest.skip("it needs what this machine has not got: root, or a writable cgroup")
    entry = said[name]
    assert entry["culprit"], entry
    assert entry["kind"], entry


def test_nobody_is_blamed_for_sure_by_mistake(said: dict[str, dict[str, Any]]) -> None:
    certain = {name for name, entry in said.items() if entry["certainty"] == "certain"}
    assert certain
    assert all(said[name]["culprit"] for name in certain)
