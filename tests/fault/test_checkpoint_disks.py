"""Saves to disks that are full or not to be written to, and directories that others reach into."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.worlds import run_processes

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.checkpoint import saving as saving_module
from torsh_runtime.checkpoint.directory import held_alone


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """Of 4 MiB."""
    mount = ("mount", "-t", "tmpfs", "-o", "size=4m", "small", str(place))
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def save_twice(place: Path, rank: int, between: Any, size: int) -> str:
    """One that succeeds and one that does not; what the latter says."""
    checkpointer = Checkpointer(place / "kept", keep_last=1)
    part = {"array": np.full(1000, 1.0), "own": tr.checkpoint.PerRank(Own(np.zeros(size)))}
    checkpointer.save(1, {"array": np.full(1000, 1.0)}, async_op=True)
    checkpointer.wait()
    tr.barrier()
    if rank == 0:
        between()
    tr.barrier()
    said = ""
    try:
        checkpointer.save(2, part, async_op=True)
        checkpointer.save(3, part)
    except tr.CheckpointError as error:
        said = str(error)
    tr.barrier()
    assert [each.name for each in (place / "kept").iterdir()] == ["step-00000001"]
    loaded = checkpointer.load()
    assert loaded is not None
    assert loaded.step == 1
    return said


class Own:
    def __init__(self, values: Any) -> None:
        self.values = values

    def state_dict(self) -> Any:
        return {"values": self.values}

    def load_state_dict(self, state: Any) -> None:
        self.values = state["values"]


def test_a_full_disk_is_told_to_all_ranks_at_the_next_call(tmp_path: Path) -> None:
    with small_disk(tmp_path):
        body = lambda rank: save_twice(tmp_path, rank, lambda: None, 400_000)  # noqa: E731
        first, second = run_processes(2, body, 30.0)
    assert first == second
    assert "nothing was saved, for rank" in first
    assert "No space left on device" in first


def test_a_disk_that_has_become_read_only_is_told(tmp_path: Path) -> None:
    def turn() -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)

    with small_disk(tmp_path):
        first, second = run_processes(2, lambda rank: save_twice(tmp_path, rank, turn, 10), 30.0)
    assert first == second
    assert "Read-only file system" in first


def test_another_job_that_saves_there_is_an_error(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, {"step": 1})
    what = r"another job is saving to .*a directory of its"
    with held_alone(tmp_path), pytest.raises(tr.CheckpointError, match=what):
        checkpointer.save(2, {"step": 2})
    assert checkpointer.steps() == [1]
    checkpointer.save(2, {"step": 2})
    assert checkpointer.steps() == [2, 1]


def test_a_child_that_was_forked_while_saving_holds_up_nobody(tmp_path: Path) -> None:
    with held_alone(tmp_path):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        Checkpointer(tmp_path).save(1, {"step": 1})
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("what", ["directory", "manifest"])
def test_links_lead_no_file_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As somebody could put them there whose directory it is, while it is saved to."""
    kept, elsewhere = tmp_path / "kept", tmp_path / "elsewhere"
    elsewhere.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    real = saving_module.Save._write_own

    def swapped(self: Any, written: Path) -> Any:
        if what == "directory":
            written.rename(tmp_path / "aside")
            written.symlink_to(elsewhere)
            return real(self, written)
        found = real(self, written)
        (written / "manifest.json").symlink_to(victim)
        return found

    monkeypatch.setattr(saving_module.Save, "_write_own", swapped)
    with pytest.raises(tr.CheckpointError, match=r"Not a directory|symbolic links|File exists"):
        Checkpointer(kept).save(1, {"array": np.zeros(3)})
    assert victim.read_text() == "precious"
    assert not [*elsewhere.iterdir()]
    assert not Checkpointer(kept).steps()
