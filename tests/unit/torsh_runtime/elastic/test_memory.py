"""The agent's memory for commits, as workers find it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from torsh_runtime.elastic.memory import CommitMemory
from torsh_runtime.errors import ConfigError
from torshrun.workers.commit_memory import CommitMemory as AgentsMemory


@pytest.fixture
def agents() -> Iterator[AgentsMemory]:
    memory = AgentsMemory(2)
    yield memory
    memory.close()


def environ(agents: AgentsMemory, rank: int) -> dict[str, str]:
    told = agents.told().split(":")
    return {
        "TORSH_COMMIT_MEMORY": ":".join([str(agents.fileno()), *told[1:]]),
        "LOCAL_RANK": str(rank),
    }


def test_what_one_rank_has_finished_others_see(agents: AgentsMemory) -> None:
    first, second = (CommitMemory.of_agent(environ(agents, rank)) for rank in (0, 1))
    assert first is not None
    assert second is not None
    content = first.make(1, 10_000)
    content[:] = 7
    assert second.slots() == []
    first.finish(1, 5, 99, b"told", 10_000)
    (slot,) = second.slots()
    assert (slot.sequence, slot.token, slot.told) == (5, 99, b"told")
    np.testing.assert_array_equal(slot.content, 7)
    second.make(1, 1)
    second.finish(1, 5, 99, b"", 1)
    assert len(first.slots()) == 2
    first.begin(1)
    assert len(second.slots()) == 1


def test_it_takes_memory_only_where_it_was_written(agents: AgentsMemory) -> None:
    assert os.fstat(agents.fileno()).st_blocks == 0
    memory = CommitMemory.of_agent(environ(agents, 1))
    assert memory is not None
    memory.make(0, 1 << 20)[:] = 1
    memory.finish(0, 1, 1, b"x", 1 << 20)
    assert os.fstat(agents.fileno()).st_blocks * 512 < 2 << 20


def test_another_descriptor_is_not_taken_for_it(agents: AgentsMemory) -> None:
    _, device, inode = agents.told().split(":")
    for told in (f"0:{device}:{inode}", f"9999:{device}:{inode}", "3", "a:b:c"):
        with pytest.raises(ConfigError, match="is not the agent's memory"):
            CommitMemory.of_agent({"TORSH_COMMIT_MEMORY": told})
    assert CommitMemory.of_agent({}) is None
    assert CommitMemory.of_agent({"TORSH_COMMIT_MEMORY": ""}) is None
