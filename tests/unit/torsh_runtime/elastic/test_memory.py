"""The agent's memory for commits, as workers find it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from torsh_runtime.elastic.memory import COPIES, OWN, Commit, CommitMemory
from torsh_runtime.errors import CheckpointError, ConfigError
from torshrun.workers.commit_memory import ROOM
from torshrun.workers.commit_memory import CommitMemory as AgentsMemory


@pytest.fixture
def agents() -> Iterator[AgentsMemory]:
    memory = AgentsMemory(2)
    yield memory
    memory.close()


def of_rank(agents: AgentsMemory, rank: int) -> CommitMemory:
    environ = {"TORSH_COMMIT_MEMORY": agents.told(), "LOCAL_RANK": str(rank)}
    memory = CommitMemory.of_agent(environ)
    assert memory is not None
    return memory


def file_of(agents: AgentsMemory) -> Path:
    return Path(agents.told().rsplit(":", 2)[0])


def test_what_one_rank_has_finished_others_see(agents: AgentsMemory) -> None:
    first, second = of_rank(agents, 0), of_rank(agents, 1)
    content = first.make(OWN, 1, 10_000)
    content[:] = 7
    assert second.commits() == []
    told = Commit(5, 99, 3, (b"told", b"", b"more"))
    first.finish(OWN, told, 10_000)
    ((found, there),) = second.commits()
    assert found == told
    np.testing.assert_array_equal(there, 7)
    second.make(COPIES, 1, 1)
    second.finish(COPIES, Commit(5, 99, 3, ()), 1)
    assert len(first.commits()) == 2
    first.begin(1)
    assert [each for each, _ in second.commits()] == [Commit(5, 99, 3, ())]


def test_it_takes_memory_only_where_it_was_written(agents: AgentsMemory) -> None:
    assert file_of(agents).stat().st_blocks == 0
    memory = of_rank(agents, 1)
    memory.make(OWN, 0, 1 << 20)
    assert 1 << 20 < file_of(agents).stat().st_blocks * 512 < 2 << 20


def test_another_file_is_not_taken_for_it(agents: AgentsMemory) -> None:
    path, device, inode = agents.told().rsplit(":", 2)
    for told in (f"/dev/null:{device}:{inode}", f"{path}:{device}:1", "/nowhere:1:2", "3", "a:b:c"):
        with pytest.raises(ConfigError, match="cannot be opened as the agent's memory"):
            CommitMemory.of_agent({"TORSH_COMMIT_MEMORY": told})
    assert CommitMemory.of_agent({}) is None
    assert CommitMemory.of_agent({"TORSH_COMMIT_MEMORY": ""}) is None


def test_nobody_can_change_its_size(agents: AgentsMemory) -> None:
    with file_of(agents).open("r+b") as file, pytest.raises(PermissionError):
        file.truncate(10)


def test_more_than_there_is_room_for_is_an_error(agents: AgentsMemory) -> None:
    with pytest.raises(CheckpointError, match="are more than commits can have"):
        of_rank(agents, 0).make(OWN, 0, ROOM)


def test_too_little_memory_is_an_error_that_says_so(
    agents: AgentsMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = of_rank(agents, 0)
    monkeypatch.setattr("torsh_runtime.elastic.memory.available_memory", lambda: 1 << 20)
    with pytest.raises(
        CheckpointError, match=r"memory for a commit of 10\.0 MB: the node has 1\.0"
    ):
        memory.make(OWN, 0, 10_000_000)
    memory.make(OWN, 0, 100_000)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((1 << 63, 1, 1, 64, 0), b""),
        ((1, 1, 1, 1 << 62, 0), b""),
        ((1, 1, 1, 64, 1 << 40), b""),
        ((1, 1, 1, 64, 9), struct.pack("<Q", 2) + b"a"),
        ((1, 1, 1, 64, 3), b"abc"),
    ],
)
def test_what_makes_no_sense_is_passed_over(
    agents: AgentsMemory, numbers: tuple[int, ...], text: bytes
) -> None:
    memory = of_rank(agents, 0)
    memory.make(OWN, 1, 64)
    memory.finish(OWN, Commit(1, 2, 0, ()), 64)
    with file_of(agents).open("r+b", buffering=0) as file:
        file.write(struct.pack("<8sQQQQQ", b"torshcm2", *numbers))
        file.seek(8192)
        file.write(text)
    with pytest.warns(RuntimeWarning, match="is invalid|cut short"):
        commits = memory.commits()
    assert [each for each, _ in commits] == [Commit(1, 2, 0, ())]
