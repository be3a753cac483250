"""Ranks that are killed at any moment while they commit, and nodes that are lost with them."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.worlds import run_processes

import torsh_runtime as tr
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.writer import Snapshot
from torsh_runtime.elastic.commits import Commits
from torsh_runtime.elastic.memory import SLOTS, CommitMemory
from torsh_runtime.layout import Piece, ShardedTensor, even_cuts
from torshrun.workers.commit_memory import ROOM
from torshrun.workers.commit_memory import CommitMemory as AgentsMemory

SIZE, LEAST = 1 << 16, 2
Nodes = list[tuple[AgentsMemory, int]]
"""Memory and number of ranks of each."""


def place(nodes: Nodes, rank: int) -> dict[str, str]:
    at = [(node, local) for node, (_, size) in enumerate(nodes) for local in range(size)]
    node, local = at[rank]
    told = nodes[node][0].told()
    return {"TORSH_COMMIT_MEMORY": told, "LOCAL_RANK": str(local), "GROUP_RANK": str(node)}


def num_ranks(nodes: Nodes) -> int:
    return sum(size for _, size in nodes)


def state_at(step: int, rank: int, ranks: int) -> dict[str, Any]:
    cuts = even_cuts(SIZE, ranks)
    piece = Piece((SIZE,), (0,), (SIZE,), cuts[rank], cuts[rank + 1])
    values = np.arange(SIZE, dtype=np.float64) + step
    part = ShardedTensor(values[piece.start : piece.end].copy(), piece)
    return {"cut": part, "same": values[:1000].copy(), "step": step, "list": ["x"] * (step % 5)}


def commit_for_ever(nodes: Nodes, rank: int, told: int) -> None:
    commits, ranks = Commits(Ranks.of(None), place(nodes, rank)), num_ranks(nodes)
    empty = state_at(0, rank, ranks)
    values = commits.restore(empty)
    step = 0 if values is None else values["step"]
    while True:
        tr.barrier()
        step += 1
        commits.commit(state_at(step, rank, ranks))
        if rank == 0:
            os.write(told, b"%d\n" % step)


def restored(nodes: Nodes, rank: int) -> tuple[int, bool]:
    """From which step on, and whether all is as it was then."""
    commits, ranks = Commits(Ranks.of(None), place(nodes, rank)), num_ranks(nodes)
    state = state_at(-1, rank, ranks)
    values = commits.restore(state)
    assert values is not None
    expected = state_at(values["step"], rank, ranks)
    is_right = (
        np.array_equal(state["cut"].values, expected["cut"].values)
        and np.array_equal(values["same"], expected["same"])
        and values["list"] == expected["list"]
    )
    return values["step"], is_right


def kill_at_random(nodes: Nodes, chance: random.Random) -> int:
    """The last step that was told to be kept."""
    reader, writer = os.pipe()
    seen: list[int] = []

    def kill(children: list[int]) -> None:
        while len(seen) < LEAST:
            assert select.select([reader], [], [], 60)[0], "no step is kept"
            seen.extend(map(int, os.read(reader, 1 << 16).split()))
        time.sleep(chance.uniform(0.0, 0.05))
        for child in children if chance.random() < 0.5 else [chance.choice(children)]:
            os.kill(child, signal.SIGKILL)

    results = run_processes(
        num_ranks(nodes), lambda rank: commit_for_ever(nodes, rank, writer), 30.0, kill
    )
    assert all(isinstance(each, Raised) for each in results)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return max([*map(int, pipe.read().split()), *seen])


def test_no_committed_step_is_lost_with_ranks_and_a_node(request: pytest.FixtureRequest) -> None:
    chance = random.Random(5)
    for _ in range(100 if request.config.getoption("--soak") else 4):
        with ExitStack() as stack:
            sizes = [chance.randint(1, 2) for _ in range(chance.randint(2, 3))]
            memories = [stack.enter_context(closing(AgentsMemory(size))) for size in sizes]
            nodes = list(zip(memories, sizes, strict=True))
            told = 0
            for _ in range(2):  # the second round begins with what the first has left
                told_now = kill_at_random(nodes, chance)
                assert told_now > told
                told = told_now
            del nodes[chance.randrange(len(nodes))]
            memory = stack.enter_context(closing(AgentsMemory(1)))
            if chance.random() < 0.5:
                nodes.insert(chance.randint(0, len(nodes)), (memory, 1))
            results = run_processes(num_ranks(nodes), partial(restored, nodes), 30.0)
            ((step, is_right),) = {*results}
            assert is_right
            assert step >= told


def test_two_neighbours_that_are_lost_are_no_commit() -> None:
    with ExitStack() as stack:
        nodes = [(stack.enter_context(closing(AgentsMemory(1))), 1) for _ in range(3)]

        def commit(rank: int) -> None:
            Commits(Ranks.of(None), place(nodes, rank)).commit(state_at(7, rank, 3))

        def restore(rank: int) -> Any:
            commits = Commits(Ranks.of(None), place(nodes[2:], rank))
            assert commits.restore(state_at(0, rank, 1)) is None
            commits.commit(state_at(9, rank, 1))
            return restored(nodes[2:], rank)

        run_processes(3, commit)
        assert run_processes(1, restore) == [(9, True)]


def test_what_is_broken_on_one_node_comes_from_the_other() -> None:
    with ExitStack() as stack:
        nodes = [(stack.enter_context(closing(AgentsMemory(1))), 1) for _ in range(2)]

        def commit(rank: int) -> None:
            Commits(Ranks.of(None), place(nodes, rank)).commit(state_at(7, rank, 2))

        run_processes(2, commit)
        with Path(nodes[0][0].told().rsplit(":", 2)[0]).open("r+b", buffering=0) as file:
            file.seek(ROOM // SLOTS)  # the second turn's, of what the rank has itself
            assert file.read(8) == b"torshcm2"
            file.write(b"\xff" * 40)
        memory = CommitMemory.of_agent(place(nodes, 0))
        assert memory is not None
        with pytest.warns(RuntimeWarning, match="is invalid"):
            left = memory.commits()
        assert len(left) == 1
        del left
        assert run_processes(2, lambda rank: restored(nodes, rank)) == [(7, True)] * 2


def test_a_rank_without_memory_for_it_stops_all_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        nodes = [(stack.enter_context(closing(AgentsMemory(1))), 1) for _ in range(2)]

        def commit(rank: int) -> str:
            commits = Commits(Ranks.of(None), place(nodes, rank))
            commits.commit(state_at(3, rank, 2))
            if rank == 1:
                monkeypatch.setattr("torsh_runtime.elastic.memory.available_memory", lambda: 5)
            with pytest.raises(
                tr.CheckpointError, match="rank 1: cannot keep a commit: too"
            ) as said:
                commits.commit(state_at(4, rank, 2))
            return str(said.value)

        first, second = run_processes(2, commit)
        assert first == second
        assert run_processes(2, lambda rank: restored(nodes, rank)) == [(3, True)] * 2


class Fragile:
    """What one rank can neither give nor take."""

    def __init__(self, what: str) -> None:
        self.what = what

    def state_dict(self) -> Any:
        if self.what == "give":
            raise RuntimeError("nothing to give")
        return {}

    def load_state_dict(self, _: Any) -> None:
        if self.what == "take":
            raise RuntimeError("nothing to take")


def test_what_the_programs_own_state_raises_on_one_rank_all_are_told(tmp_path: Path) -> None:
    with closing(AgentsMemory(2)) as memory:
        nodes = [(memory, 2)]

        def body(rank: int) -> list[str]:
            commits = Commits(Ranks.of(None), place(nodes, rank))
            checkpointer = tr.checkpoint.Checkpointer(tmp_path)
            commits.commit({"thing": Fragile("")})
            checkpointer.save(1, {"thing": Fragile("")})
            giving = {"thing": Fragile("give" if rank else "")}
            taking = {"thing": Fragile("take" if rank else "")}
            calls = [
                partial(commits.commit, giving),
                partial(commits.restore, taking),
                partial(checkpointer.save, 2, giving),
                partial(checkpointer.load, taking),
            ]
            heard = []
            for call in calls:
                with pytest.raises(tr.CheckpointError) as raised:
                    call()
                heard.append(str(raised.value))
            assert commits.restore({"thing": Fragile("")}) == {}
            return heard

        heard = run_processes(2, body)
    assert all(
        f"nothing to {what}" in text
        for own in heard
        for text, what in zip(own, ["give", "take"] * 2, strict=True)
    ), heard


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def commit_until_rank_1_dies(nodes: Nodes, rank: int, steps: int, where: tuple[Any, str]) -> None:
    """After so many steps rank 1 dies in that method, in the middle of the next commit."""
    commits = Commits(Ranks.of(None), place(nodes, rank))
    values = commits.restore(state_at(0, rank, num_ranks(nodes)))
    began = 0 if values is None else values["step"]
    for step in range(began + 1, began + steps + 1):
        commits.commit(state_at(step, rank, num_ranks(nodes)))
    if rank == 1:
        setattr(*where, die)
    commits.commit(state_at(began + steps + 1, rank, num_ranks(nodes)))


def test_a_commit_that_is_not_whole_leaves_the_one_before_until_another_is() -> None:
    with closing(AgentsMemory(2)) as memory:
        nodes: Nodes = [(memory, 2)]
        finish, copies = (CommitMemory, "finish"), (Snapshot, "copies")
        run_processes(2, partial(commit_until_rank_1_dies, nodes, steps=2, where=finish))
        assert run_processes(2, partial(restored, nodes)) == [(2, True)] * 2
        run_processes(2, partial(commit_until_rank_1_dies, nodes, steps=0, where=copies))
        assert run_processes(2, partial(restored, nodes)) == [(2, True)] * 2


def test_what_is_being_written_over_is_no_commit_any_more() -> None:
    with closing(AgentsMemory(2)) as memory:
        nodes: Nodes = [(memory, 2)]
        run_processes(
            2, partial(commit_until_rank_1_dies, nodes, steps=2, where=(Snapshot, "copies"))
        )
        ours = CommitMemory.of_agent(place(nodes, 0))
        assert ours is not None
        assert {each.sequence for each, _ in ours.commits()} == {2}


def test_values_that_are_lost_with_a_rank_are_missed() -> None:
    """Rank 1 has no tensor of its own, so that only its values go with it."""

    def state(rank: int) -> dict[str, Any]:
        own = {"own": np.ones(3)} if rank == 0 else {}
        return {"same": np.zeros(2), "each": tr.checkpoint.PerRank(Values(own | {"rank": rank}))}

    with ExitStack() as stack:
        nodes = [(stack.enter_context(closing(AgentsMemory(1))), 1) for _ in range(3)]

        def commit(rank: int) -> None:
            Commits(Ranks.of(None), place(nodes, rank)).commit(state(rank))

        def restore(rank: int, left: Nodes) -> Any:
            return Commits(Ranks.of(None), place(left, rank)).restore(state(rank)) is not None

        run_processes(3, commit)
        assert run_processes(2, partial(restore, left=nodes[:2])) == [True] * 2
        assert run_processes(1, partial(restore, left=nodes[:1])) == [False]


class Values:
    def __init__(self, values: Any) -> None:
        self.values = values

    def state_dict(self) -> Any:
        return self.values

    def load_state_dict(self, values: Any) -> None:
        self.values = values
