"""--dry-run: what is the same for all, what is each one's own, and what nobody knows yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from torshrun.config.job import LaunchConfig
from torshrun.launch_plan import CHOSEN_AT_START, GIVEN, plan


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "a train.py"
    path.write_text("")
    return str(path)


def test_common_and_own(script: str) -> None:
    text = plan(LaunchConfig(target=script, nproc_per_node=2, role="my role"), {"HOME": "/h"})
    head, common, first, second = text.split("\n\n")
    assert head == "2 workers would start; nothing has been started."
    assert f"'{script}'" in common
    assert "  ROLE_NAME='my role'" in common
    assert "  WORLD_SIZE=2" in common
    assert "HOME" not in text
    assert first.startswith("Rank 0:\n")
    assert "  RANK=0\n" in first
    assert "  LOCAL_RANK=1\n" in second
    assert "WORLD_SIZE" not in first + second


def test_what_is_chosen_at_the_start_is_not_made_up(script: str) -> None:
    text = plan(LaunchConfig(target=script), {})
    for name in ("MASTER_PORT", "TORSH_WORKER_SECRET", "TORSH_STORE_ENDPOINT", "TORSH_SCRATCH"):
        assert f"  {name}={CHOSEN_AT_START}\n" in text
    assert "  MASTER_PORT=29511\n" in plan(LaunchConfig(target=script, master_port=29511), {})


def test_values_that_may_be_secrets_are_not_shown(script: str) -> None:
    asked = {"TOKEN": "hf_abc", "OMP_NUM_THREADS": "3", "KEPT": "k"}
    text = plan(LaunchConfig(target=script, environment=asked), {"KEPT": "k"})
    assert "hf_abc" not in text
    for name in asked:
        assert f"  {name}={GIVEN}\n" in text


def test_one_worker_has_nothing_in_common(script: str) -> None:
    text = plan(LaunchConfig(target=script), {})
    assert "Every worker" not in text
    assert "Rank 0:" in text


def test_what_torshrun_changes_is_shown_and_what_it_keeps_is_not(script: str) -> None:
    text = plan(LaunchConfig(target=script), {"RANK": "7", "ROLE_NAME": "default"})
    assert "  RANK=0\n" in text
    assert "ROLE_NAME" not in text
