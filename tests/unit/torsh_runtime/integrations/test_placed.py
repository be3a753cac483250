"""Ranks in processes that another framework has placed."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import pytest

import torsh_runtime as tr
from torsh_runtime.contract import ALL_VARIABLES
from torsh_runtime.errors import CommTimeout
from torsh_runtime.integrations.placed import (
    Place,
    RankRepeated,
    Rendezvous,
    abort,
    await_ranks,
    entered,
    leave,
    serve,
)

MEETING = Rendezvous("tcp:127.0.0.1:1", "ab" * 32)


def test_ranks_are_counted_per_node_in_the_order_of_places() -> None:
    nodes = ["b", "a", "b", "a", "c"]
    places = [Place(f"10.0.0.{n}", node, n, 7000 + n) for n, node in enumerate(nodes)]
    envs = MEETING.environments(places, "job", 2)
    assert [env.rank for env in envs] == [env.role_rank for env in envs] == [0, 1, 2, 3, 4]
    assert [env.local_rank for env in envs] == [0, 0, 1, 1, 0]
    assert [env.local_world_size for env in envs] == [2, 2, 2, 2, 1]
    assert [env.node_rank for env in envs] == [0, 1, 0, 1, 2]
    assert {env.num_nodes for env in envs} == {3}
    assert {(env.master_addr, env.master_port) for env in envs} == {("10.0.0.0", 7000)}
    assert {(env.run_id, env.restart_count) for env in envs} == {("job", 2)}


def places_in(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in ALL_VARIABLES if name in environ}


def test_a_rank_has_a_group_while_it_is_entered_and_leaves_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("TORSH_STATUS_FILE", "/nowhere")
    before = places_in(os.environ)
    rendezvous, hosted = serve("127.0.0.1")
    try:
        (env,) = rendezvous.environments([Place.here("127.0.0.1", "node")])
        with entered(env, None, 10, 10):
            values = np.ones(2)
            tr.all_reduce(values)
            assert (tr.get_rank(), os.environ["RANK"]) == (0, "0")
            assert "TORSH_STATUS_FILE" not in os.environ
            tr.get_store().set("key", "value")
            abort()
            with pytest.raises(tr.CommAborted):
                tr.barrier()
        assert not tr.is_initialized()
        assert places_in(os.environ) == before
        with pytest.raises(RankRepeated, match="rank 0 was begun again"):
            await_ranks(env, 10)
    finally:
        hosted.close()
    with pytest.raises(RankRepeated, match="when its job was over"):
        await_ranks(env, 10)
    leave()
    abort()


def test_ranks_that_do_not_begin_are_named() -> None:
    rendezvous, hosted = serve("127.0.0.1")
    places = [Place("127.0.0.1", "node", rank, 1) for rank in range(3)]
    try:
        envs = rendezvous.environments(places)
        with pytest.raises(CommTimeout) as caught:
            await_ranks(envs[1], 0.2)
        for rank in (0, 2):  # once one has given up, nobody goes on
            with pytest.raises(CommTimeout, match=r"waiting for rank\(s\) 0, 2"):
                await_ranks(envs[rank], 0.2)
    finally:
        hosted.close()
    assert caught.value.missing == (0, 2)
