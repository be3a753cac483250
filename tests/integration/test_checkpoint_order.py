"""Which checkpoints of a directory are newer than others, and which stay, by one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_files import only_file, saved

from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.errors import CheckpointError, ConfigError


def test_saving_again_replaces_and_old_ones_go(tmp_path: Path) -> None:
    (tmp_path / ".tmp-9-left-by-a-job-that-was-killed").mkdir()
    (tmp_path / "notes").mkdir()
    checkpointer = saved(tmp_path, 1, 2, 3, 3, keep_last=2)
    checkpointer.wait()
    assert checkpointer.steps() == [3, 2]
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "notes",
        "step-00000002",
        "step-00000003.1",
    ]
    assert sorted(saved(tmp_path, 4).steps()) == [2, 3, 4]


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


@pytest.mark.parametrize("async_op", [False, True])
def test_a_training_that_goes_back_keeps_what_it_saves(async_op: bool, tmp_path: Path) -> None:
    saved(tmp_path, 50, 90, 100)
    with Checkpointer(tmp_path, keep_last=3) as checkpointer:
        assert checkpointer.load(step=50) is not None
        for step in (51, 52):
            checkpointer.save(step, {"array": np.full(9, -step)}, async_op=async_op)
        checkpointer.wait()
        assert checkpointer.steps() == [52, 51, 100]
    assert names(tmp_path) == ["step-00000051-1", "step-00000052-1", "step-00000100"]
    again = Checkpointer(tmp_path, keep_last=3)  # of a job that is started anew
    loaded = again.load()
    assert loaded is not None
    assert (loaded.step, loaded.values["array"][0]) == (52, -52)
    saved(tmp_path, 53, 54, keep_last=3).wait()
    assert names(tmp_path) == ["step-00000052-1", "step-00000053-1", "step-00000054-1"]
    saved(tmp_path, 1, 1, 2, keep_last=2).wait()
    assert names(tmp_path) == ["step-00000001-2.1", "step-00000002-2"]


def test_a_new_run_replaces_the_steps_that_it_comes_to(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    checkpointer = saved(tmp_path, 2)
    checkpointer.wait()
    assert names(tmp_path) == ["step-00000001", "step-00000002-1", "step-00000003"]
    assert checkpointer.steps() == [2, 3, 1]
    loaded = checkpointer.load()
    assert loaded is not None
    assert loaded.step == 2


def test_damaged_ones_do_not_count_among_those_that_stay(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4)
    (tmp_path / "step-00000004" / "manifest.json").unlink()
    (tmp_path / "step-00999999").mkdir()
    saved(tmp_path, 5, keep_last=2).wait()
    assert names(tmp_path) == [
        f"step-{n}" for n in ("00000003", "00000004", "00000005-1", "00999999")
    ]
    checkpointer = saved(tmp_path, 6, keep_last=2)
    checkpointer.wait()
    assert names(tmp_path) == ["step-00000005-1", "step-00000006-1"]
    only_file(tmp_path / "step-00000006-1").unlink()
    saved(tmp_path, 6).wait()
    assert names(tmp_path) == ["step-00000005-1", "step-00000006-1.1"]


def test_a_name_that_nobody_would_find_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be named step-1000000000000000000: its step"):
        saved(tmp_path, 10**18)
    (tmp_path / "step-00000003-999999999").mkdir()
    with pytest.raises(CheckpointError, match=r"too many digits\. Save to another directory"):
        saved(tmp_path, 2)
    assert names(tmp_path) == ["step-00000003-999999999"]


def test_a_step_may_be_a_number_of_numpys_or_torchs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    checkpointer = saved(tmp_path, *map(np.int64, (1, 2)), torch.tensor(3))
    assert checkpointer.steps() == [3, 2, 1]
    for step in (np.int64(2), torch.tensor(2)):
        loaded = checkpointer.load(step=step)
        assert loaded is not None
        assert (type(loaded.step), loaded.step) == (int, 2)
    for step in (True, 1.0, np.float64(1), torch.tensor([1, 2]), "1", None, np.int64(-1)):
        with pytest.raises(ConfigError, match="step must be an integer"):
            checkpointer.save(step, {})  # type: ignore[arg-type]
