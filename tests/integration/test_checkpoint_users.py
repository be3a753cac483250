"""Directories of checkpoints in which several users of a host have to do."""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.other_users import STRANGER, needs_root, stranger

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.checkpoint.directory import held_alone

pytestmark = needs_root


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory to which the other user gets, as to none of pytest's own. It has a checkpoint of
    this one."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        kept = Path(folder, "kept")
        Checkpointer(kept).save(1, {"step": 1})
        yield kept


def said(call: Any) -> str:
    """By the CheckpointError that it raises."""
    try:
        call()
    except tr.CheckpointError as error:
        return str(error)
    return ""


def test_who_may_only_read_does_not_keep_the_owner_from_saving(place: Path) -> None:
    def lock(pipe: Any) -> str:
        fcntl.flock(os.open(place, os.O_RDONLY), fcntl.LOCK_EX)
        pipe.send(("said", "locked"))
        pipe.recv()
        try:
            os.open(place / ".lock", os.O_RDONLY)
        except PermissionError as error:
            return str(error)
        return "opened"

    with stranger(lock) as other:
        assert other.says() == "locked"
        Checkpointer(place).save(2, {"step": 2})
        with held_alone(place):
            other.tell("look")
            assert "Permission denied" in other.says()
    assert Checkpointer(place).steps() == [2, 1]
    assert not (place / ".lock").exists()


def test_who_may_write_is_a_job_like_others(place: Path) -> None:
    place.chmod(0o777)

    def save(pipe: Any) -> str:
        pipe.recv()
        first = said(lambda: Checkpointer(place).save(2, {"step": 2}))
        pipe.send(("said", first))
        pipe.recv()
        return said(lambda: Checkpointer(place).save(2, {"step": 2}))

    with stranger(save) as other:
        with held_alone(place):
            other.tell("begin")
            assert "another job is saving to" in other.says()
        other.tell("again")
        assert other.says() == ""
    assert Checkpointer(place).steps() == [2, 1]


def test_the_lock_of_a_job_that_was_killed(place: Path) -> None:
    lock = place / ".lock"
    lock.touch(0o600)
    Checkpointer(place).save(2, {"step": 2})
    assert not lock.exists()
    lock.touch(0o600)
    place.chmod(0o777)
    with stranger(lambda _: said(lambda: Checkpointer(place).save(3, {"step": 3}))) as other:
        found = other.says()
    assert "a job of user 0 is saving to" in found
    assert f"remove {lock} if none does" in found
    assert Checkpointer(place).steps() == [2, 1]


def test_a_directory_of_another_user_is_told_as_such(place: Path) -> None:
    def save(_: Any) -> list[str]:
        there, below = Checkpointer(place), Checkpointer(place / "deep" / "er")
        return [said(partial(each.save, 2, {"step": 2})) for each in (there, below)]

    with stranger(save) as other:
        for found in other.says():
            assert f"{place} belongs to user 0 (drwxr-xr-x), and this is user {STRANGER}" in found
            assert "name a directory that it may write to" in found
    assert Checkpointer(place).steps() == [1]


def test_one_that_cannot_be_looked_into_is_told(place: Path) -> None:
    place.chmod(0o700)
    with stranger(lambda _: said(Checkpointer(place).load)) as other:
        found = other.says()
    assert f"Permission denied: '{place}'; {place} belongs to user 0 (drwx------)" in found


@pytest.mark.parametrize(("mode", "why"), [(0o1777, "not permitted"), (0o777, "cannot be removed")])
def test_what_others_own_stays_and_the_new_one_is_there(place: Path, mode: int, why: str) -> None:
    place.chmod(mode)

    def save(_: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Checkpointer(place, keep_last=1) as checkpointer:
                checkpointer.save(2, {"step": 2})
        return [str(each.message) for each in caught]

    with stranger(save) as other:
        (found,) = other.says()
    assert "an old checkpoint remains" in found
    assert why in found
    loaded = Checkpointer(place).load()
    assert loaded is not None
    assert loaded.step == 2


def test_what_another_user_has_saved_of_a_later_step_costs_nothing(place: Path) -> None:
    place.chmod(0o1777)
    Checkpointer(place).save(999_999, {"step": 0})

    def save(_: Any) -> list[list[int]]:
        kept = []
        with warnings.catch_warnings(), Checkpointer(place, keep_last=2) as checkpointer:
            warnings.simplefilter("ignore")
            for step in (2, 3, 4):
                checkpointer.save(step, {"step": step})
                checkpointer.wait()
                kept.append(checkpointer.steps())
        return kept

    with stranger(save) as other:
        assert other.says() == [[2, 999_999, 1], [3, 2, 999_999, 1], [4, 3, 999_999, 1]]
    loaded = Checkpointer(place).load()
    assert loaded is not None
    assert loaded.values == {"step": 4}
