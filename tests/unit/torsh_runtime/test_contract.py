"""The variables between agent and worker."""

from __future__ import annotations

import pytest

from torsh_runtime.contract import ALL_VARIABLES, WorkerEnv
from torsh_runtime.errors import ConfigError

PLACE = WorkerEnv(
    rank=5,
    world_size=8,
    local_rank=1,
    local_world_size=4,
    node_rank=1,
    num_nodes=2,
    role_name="trainer",
    role_rank=3,
    role_world_size=6,
    master_addr="10.0.0.1",
    master_port=4000,
    restart_count=1,
    max_restarts=3,
    run_id="job",
    round=2,
    store_endpoint="unix:@store",
    secret="00ff",
    error_file="/tmp/error.json",
    stack_file="/tmp/stack",
    scratch="/tmp/scratch",
    status_file="/tmp/status",
    metrics_at="http://127.0.0.1:9090/metrics",
    jax_coordinator_port=4001,
    is_replacement=True,
    ends_at=1234.5,
)


def test_a_worker_reads_what_the_agent_sets() -> None:
    assert WorkerEnv.from_environ(PLACE.to_environ()) == PLACE


def test_all_variables_are_listed() -> None:
    assert PLACE.to_environ().keys() == ALL_VARIABLES


def test_what_is_empty_is_not_set() -> None:
    bare = WorkerEnv(rank=0, world_size=1, local_rank=0, local_world_size=1)
    environ = bare.to_environ()
    assert "" not in environ.values()
    assert not environ.keys() & {"TORSH_WORKER_SECRET", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"}
    assert WorkerEnv.from_environ(environ) == bare


def test_the_place_within_the_role() -> None:
    environ = PLACE.to_environ()
    assert (environ["ROLE_RANK"], environ["ROLE_WORLD_SIZE"]) == ("3", "6")
    alone = WorkerEnv(rank=2, world_size=4, local_rank=0, local_world_size=2)
    assert (alone.role_rank, alone.role_world_size) == (2, 4)
    by_hand = WorkerEnv.from_environ({"RANK": "1", "WORLD_SIZE": "3"})
    assert (by_hand.role_rank, by_hand.role_world_size) == (1, 3)


def test_the_rounds_secret_is_not_what_a_user_sets() -> None:
    assert "TORSH_SECRET" not in PLACE.to_environ()
    mine = {"RANK": "0", "WORLD_SIZE": "1", "TORSH_SECRET": "aa"}
    assert WorkerEnv.from_environ(mine).secret == "aa"
    assert WorkerEnv.from_environ({**PLACE.to_environ(), "TORSH_SECRET": "aa"}).secret == "00ff"
    assert WorkerEnv.from_environ({**PLACE.to_environ(), "TORSH_SECRET": ""}).secret == "00ff"
    with pytest.raises(ConfigError, match="TORSH_SECRET is empty"):
        WorkerEnv.from_environ({**mine, "TORSH_SECRET": ""})


def test_the_place_for_jax() -> None:
    environ = PLACE.to_environ()
    assert environ["JAX_COORDINATOR_ADDRESS"] == "10.0.0.1:4001"
    assert (environ["JAX_PROCESS_ID"], environ["JAX_NUM_PROCESSES"]) == ("5", "8")


def test_an_ipv6_address_stands_in_brackets_for_jax() -> None:
    place = WorkerEnv(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        master_addr="fe80::1",
        jax_coordinator_port=9,
    )
    environ = place.to_environ()
    assert environ["JAX_COORDINATOR_ADDRESS"] == "[fe80::1]:9"
    assert WorkerEnv.from_environ(environ) == place


def test_the_local_rank_is_known_even_if_the_workers_are_told_another() -> None:
    environ = {**PLACE.to_environ(), "LOCAL_RANK": "0"}
    assert WorkerEnv.from_environ(environ).local_rank == 1


@pytest.mark.parametrize("address", ["host", "host:", "host:x", ""])
def test_a_coordinator_that_another_tool_set_is_no_mistake(address: str) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "1", "JAX_COORDINATOR_ADDRESS": address}
    assert WorkerEnv.from_environ(environ).jax_coordinator_port == 0


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, "RANK is not set"),
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"RANK": "zero", "WORLD_SIZE": "1"}, "RANK='zero'"),
        ({"RANK": "1", "WORLD_SIZE": "1"}, "RANK=1"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "0"}, "MASTER_PORT=0"),
    ],
)
def test_mistakes_name_the_variable(environ: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        WorkerEnv.from_environ(environ)
