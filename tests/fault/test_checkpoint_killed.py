"""Ranks that are killed at any moment while they save."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.worlds import run_processes

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer, CheckpointReader
from torsh_runtime.layout import Piece, ShardedTensor

RANKS, SIZE = 4, 1 << 18
BOUND = 20.0
"""Seconds that ranks wait for one that was killed while they met, whom nobody tells them of."""


def values_of(step: int) -> Any:
    return np.arange(SIZE, dtype=np.float64) + step


def save_for_ever(rank: int, directory: Path, start: int, told: int) -> None:
    """Save step after step, each rank a quarter, and tell rank 0's pipe what is saved."""
    checkpointer = Checkpointer(directory, keep_last=2)
    tr.barrier()
    if rank == 0:
        os.write(told, b"0\n")
    piece = Piece((SIZE,), (0,), (SIZE,), SIZE // RANKS * rank, SIZE // RANKS * (rank + 1))
    for step in range(start, start + 100_000):
        values = values_of(step)
        part = ShardedTensor(values[piece.start : piece.end].copy(), piece)
        state = {"sharded": part, "same": values[:1000], "step": step}
        checkpointer.save(step, state, async_op=bool(step % 2))
        if step % 2 == 0 and rank == 0:
            os.write(told, b"%d\n" % step)


def kill_at_random(directory: Path, start: int, chance: random.Random, after_a_save: bool) -> int:
    """The last step of which rank 0 was told that it is saved."""
    reader, writer = os.pipe()
    told = b""

    def hear() -> None:
        nonlocal told
        assert select.select([reader], [], [], BOUND * 2)[0], "the ranks do not come to it"
        told += os.read(reader, 4096)

    def kill(children: list[int]) -> None:
        hear()  # all are ready
        while after_a_save and told.count(b"\n") < 2:
            hear()
        time.sleep(chance.uniform(0.0, 0.4))
        victims = children if chance.random() < 0.7 else [chance.choice(children)]
        for child in victims:
            os.kill(child, signal.SIGKILL)

    results = run_processes(
        RANKS, lambda rank: save_for_ever(rank, directory, start, writer), BOUND, kill
    )
    assert all(isinstance(each, Raised) for each in results)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return max(map(int, (told.decode() + pipe.read()).split()), default=0)


def test_the_newest_checkpoint_is_whole_whenever_ranks_are_killed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(3)
    last = 0
    for number in range(200 if request.config.getoption("--soak") else 12):
        acknowledged = kill_at_random(tmp_path, last + 1, chance, number % 4 == 3)
        checkpointer = Checkpointer(tmp_path)
        loaded = checkpointer.load()
        if loaded is None:
            assert not acknowledged
            continue
        assert not loaded.passed_over
        assert loaded.step >= max(acknowledged, last)
        last = loaded.step
        assert loaded.values["step"] == last
        np.testing.assert_array_equal(loaded.values["sharded"], values_of(last))
        np.testing.assert_array_equal(loaded.values["same"], values_of(last)[:1000])
        for path in tmp_path.glob("step-*"):
            with CheckpointReader(path) as reader:
                reader.verify()
    assert last > 0


def test_a_rank_that_cannot_write_stops_all_and_the_next_save_succeeds(tmp_path: Path) -> None:
    def body(rank: int) -> str:
        checkpointer = Checkpointer(tmp_path / "all")
        state = {"array": np.full(100_000, 1.0)}
        real = os.write
        if rank == 1:
            os.write = _disk_full
        try:
            checkpointer.save(1, state, async_op=True)
            checkpointer.wait()
        except tr.CheckpointError as error:
            said = str(error)
        os.write = real
        tr.barrier()
        assert not [*(tmp_path / "all").iterdir()]
        tr.barrier()
        checkpointer.save(2, state)
        assert checkpointer.steps() == [2]
        return said

    said = run_processes(2, body)
    assert said[0] == said[1] == "nothing was saved, for rank 1: [Errno 28] No space left on device"
    assert [each.name for each in (tmp_path / "all").iterdir()] == ["step-00000002"]


def _disk_full(*_: Any) -> int:
    raise OSError(28, "No space left on device")


def test_ranks_that_save_different_things_are_told(tmp_path: Path) -> None:
    def body(rank: int) -> list[str]:
        checkpointer = Checkpointer(tmp_path)
        said = []
        cases: list[tuple[int, dict[str, Any]]] = [
            (1 + rank, {}),
            (3, {"array": np.zeros(3 + rank)}),
            (4, {"array": np.zeros(3, np.float64 if rank else np.float32)}),
            (5, {"array": object() if rank else 1}),
        ]
        for step, state in cases:
            try:
                checkpointer.save(step, state)
            except tr.CheckpointError as error:
                said.append(str(error))
        checkpointer.save(9, {"array": np.zeros(3)})
        return said

    first, second = run_processes(2, body)
    assert first == second
    assert [each[:30] for each in first] == [
        "ranks save different steps, or",
        "'array' is float64 of shape (3",
        "'array' is float32 of shape (3",
        "rank 1 cannot save: array is a",
    ]


def test_damage_that_one_rank_sees_makes_all_pass_over(tmp_path: Path) -> None:
    def save(rank: int) -> None:
        for step in (1, 2):
            piece = Piece((4,), (0,), (4,), 2 * rank, 2 * rank + 2)
            part = ShardedTensor(np.full(2, float(step)), piece)
            Checkpointer(tmp_path).save(step, {"array": part})

    def load(rank: int) -> tuple[int, list[float]]:
        piece = Piece((4,), (0,), (4,), 2 * rank, 2 * rank + 2)
        part = ShardedTensor(np.empty(2), piece)
        loaded = Checkpointer(tmp_path).load({"array": part})
        assert loaded is not None
        return loaded.step, part.values.tolist()

    run_processes(2, save)
    file = tmp_path / "step-00000002" / "rank-00001.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert run_processes(2, load) == [(1, [1.0, 1.0])] * 2
