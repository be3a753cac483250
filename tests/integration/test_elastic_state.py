"""Trainings that go on from their last commit when workers are killed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support import elastic_training
from support.launcher import Launcher

SCRIPT = str(Path(elastic_training.__file__))


def results(out: str) -> tuple[list[int], dict[tuple[int, int], set[tuple[int, ...]]], float]:
    """Where each round of workers began, what was taken in each step of each epoch, the end."""
    starts = [int(step) for step in re.findall(r"start (\d+)", out)]
    taken: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for step, epoch, indices in re.findall(r"step (\d+) (\d+) ([\d ]+)", out):
        taken.setdefault((int(step), int(epoch)), set()).add(tuple(map(int, indices.split())))
    ends = {float(total) for total in re.findall(r"end 15 ([\d.]+)", out)}
    return starts, taken, max(ends)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_killed_workers_lose_no_committed_step(torshrun: Launcher, way: str) -> None:
    launch = ("--nproc-per-node", "4", "--max-restarts", "2", "--restart-backoff", "0")
    code, out, err = torshrun.run(*launch, SCRIPT, way, "3", "7")
    assert code == 0, err
    starts, taken, end = results(out)
    assert starts == [0] * 4 + [3] * 4 + [7] * 4
    assert sorted(step for step, _ in taken) == list(range(1, 16))
    for epoch in range(elastic_training.EPOCHS):
        parts = [part for (_, at), own in taken.items() if at == epoch for part in own]
        assert sorted(n for part in parts for n in part) == list(range(elastic_training.SAMPLES))
    code, out, err = torshrun.run(*launch, SCRIPT, way)
    assert code == 0, err
    _, undisturbed, expected = results(out)
    assert taken == undisturbed
    np.testing.assert_allclose(end, expected, rtol=1e-12)


def test_without_an_agent_nothing_is_kept() -> None:
    import torsh_runtime as tr

    state = tr.elastic.State(step=1, values={"a": 2})
    state.step += 1
    state.commit()
    assert not state.restore()
    assert state.step == 2
    with pytest.raises(AttributeError, match="no part 'epoch'"):
        state.epoch = 1
    with pytest.raises(AttributeError, match="no part 'epoch'"):
        _ = state.epoch


def test_a_state_without_commits_takes_the_checkpoint(tmp_path: Path) -> None:
    import torsh_runtime as tr

    checkpointer = tr.checkpoint.Checkpointer(tmp_path)
    checkpointer.save(4, {"step": 4, "array": np.arange(3)})
    state = tr.elastic.State(step=0, array=None, checkpointer=checkpointer)
    calls: list[int] = []
    state.register_reset_callbacks([lambda: calls.append(state.step)])
    assert state.restore()
    np.testing.assert_array_equal(state.array, np.arange(3))
    assert calls == [4]
