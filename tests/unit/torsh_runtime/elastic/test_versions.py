"""Versions of a rank's shards in the agent's memory: what is whole, torn, or damaged."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from torsh_runtime.elastic.memory import OWN, CommitMemory
from torsh_runtime.elastic.versions import GRADIENTS, STATE, Version, Versions
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.parallel.state import Contents
from torshrun.workers.commit_memory import CommitMemory as AgentsMemory

ROWS = 300_000
HALF = Piece((2 * ROWS,), (0,), (2 * ROWS,), ROWS, 2 * ROWS)
NONE = Piece((4,), (0,), (4,), 0, 0)


@pytest.fixture
def agents() -> Iterator[AgentsMemory]:
    memory = AgentsMemory(2)
    yield memory
    memory.close()


def memory_of(agents: AgentsMemory, rank: int = 0) -> CommitMemory:
    environ = {"TORSH_COMMIT_MEMORY": agents.told(), "LOCAL_RANK": str(rank)}
    memory = CommitMemory.of_agent(environ)
    assert memory is not None
    return memory


def versions_of(agents: AgentsMemory, rank: int = 0) -> Versions:
    return Versions(memory_of(agents, rank), rank, 2)


def kept(versions: Versions, kind: int, rank: int = 0) -> dict[int, Version]:
    found = versions.found([rank])
    return {key.number: each for key, each in found.items() if key.kind == kind}


def contents(first: float) -> Contents:
    values = np.arange(first, first + ROWS, dtype=np.float32)
    tensors = {
        "model/weight": ShardedTensor(values, HALF),
        "model/bias": ShardedTensor(np.empty(0, np.float32), NONE),
    }
    return Contents(tensors, {"optimizer": {"step": first}})


def read(version: Version) -> np.ndarray:
    values = np.zeros(ROWS, np.float32)
    version.read("model/weight", ShardedTensor(values, HALF))
    version.read("model/bias", ShardedTensor(np.empty(0, np.float32), NONE))
    return values


def test_another_process_reads_the_last_two_of_each_kind(agents: AgentsMemory) -> None:
    own = versions_of(agents)
    for number in range(5):
        own.begin(STATE, number, contents(number))
        own.wait()
        own.keep(GRADIENTS, number, contents(-number))
    found = versions_of(agents)
    states, gradients = kept(found, STATE), kept(found, GRADIENTS)
    assert {*states} == {*gradients} == {3, 4}
    np.testing.assert_array_equal(read(states[4]), contents(4).tensors["model/weight"].values)
    np.testing.assert_array_equal(read(gradients[3]), contents(-3).tensors["model/weight"].values)
    assert states[3].values == {"optimizer": {"step": 3}}
    assert kept(versions_of(agents, rank=1), STATE) == {}


def test_what_is_being_written_is_not_there(agents: AgentsMemory) -> None:
    own, goes_on = versions_of(agents), threading.Event()

    class Slow(np.ndarray):
        def __array_finalize__(self, _: object) -> None:
            if threading.current_thread() is not threading.main_thread():
                goes_on.wait(10)

    own.keep(STATE, 0, contents(0))
    own.keep(STATE, 1, contents(1))
    given = contents(2)
    slow = given.tensors["model/weight"].values.view(Slow)
    given.tensors["model/weight"] = ShardedTensor(slow, HALF)
    own.begin(STATE, 2, given)
    assert {*kept(versions_of(agents), STATE)} == {1}
    goes_on.set()
    own.wait()
    assert {*kept(versions_of(agents), STATE)} == {1, 2}


@pytest.mark.parametrize("at", [0.3, 0.999])
def test_a_flipped_bit_is_passed_over_and_said(agents: AgentsMemory, at: float) -> None:
    own = versions_of(agents)
    own.keep(STATE, 6, contents(6))
    own.keep(STATE, 7, contents(7))
    content = memory_of(agents).make(OWN, 1, 4 * ROWS)
    content[int(at * content.size)] ^= 16
    told = "rank 0 passed over a state.*weight.*of step 7 is damaged"
    with pytest.warns(RuntimeWarning, match=told):
        found = kept(versions_of(agents), STATE)
    assert {*found} == {6}


def test_texts_that_are_damaged_are_passed_over(agents: AgentsMemory) -> None:
    own = versions_of(agents)
    own.keep(STATE, 1, contents(1))
    memory = memory_of(agents)
    found = memory.own(OWN, 1)
    assert found is not None
    commit, content = found
    told = (commit.told[0], commit.told[1].replace(b"step", b"stop"), commit.told[2])
    memory.finish(OWN, commit._replace(told=told), content.size)
    with pytest.warns(RuntimeWarning, match="what is told of it is damaged"):
        assert kept(versions_of(agents), STATE) == {}


def test_an_earlier_start_of_the_job_is_forgotten(agents: AgentsMemory) -> None:
    own = versions_of(agents)
    own.keep(STATE, 1, contents(1))
    own.keep(GRADIENTS, 1, contents(1))
    own.clear()
    assert kept(own, STATE) == kept(own, GRADIENTS) == {}
