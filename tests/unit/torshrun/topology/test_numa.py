"""Every policy on machines that are made up, and on this one."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import machines

from torsh_runtime.errors import ConfigError
from torshrun.text import parse_ranges, ranges
from torshrun.topology.numa import (
    Cpu,
    Topology,
    bind,
    read_topology,
)

POLICIES = ("node", "socket", "exclusive", "core-complex")


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    return read_topology(range(32), machines.two_sockets(tmp_path_factory.mktemp("big")))


def shown(sets: tuple[frozenset[int], ...]) -> list[str]:
    return [",".join(ranges(cpus)) for cpus in sets]


def test_what_the_kernel_says_is_read(big: Topology) -> None:
    assert len(big) == 32
    assert big[23] == Cpu(number=23, node=1, socket=0, core=7, cache=6)


def test_node(big: Topology) -> None:
    four = ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]
    assert shown(bind("node", 4, big)) == four
    assert shown(bind("node", 8, big)) == [node for node in four for _ in range(2)]
    assert shown(bind("node", 2, big)) == [four[0], four[2]]  # one on each socket
    assert shown(bind("node", 1, big)) == four[:1]


def test_socket(big: Topology) -> None:
    two = ["0-7,16-23", "8-15,24-31"]
    assert shown(bind("socket", 2, big)) == two
    assert shown(bind("socket", 4, big)) == [two[0], two[0], two[1], two[1]]


def test_exclusive_keeps_threads_of_a_core_together(big: Topology) -> None:
    assert shown(bind("exclusive", 8, big))[:3] == ["0-1,16-17", "2-3,18-19", "4-5,20-21"]
    assert shown(bind("exclusive", 16, big)) == [f"{n},{n + 16}" for n in range(16)]


def test_core_complexes_are_taken_in_turn(big: Topology) -> None:
    assert shown(bind("core-complex", 8, big))[:2] == ["0-1,16-17", "2-3,18-19"]
    assert shown(bind("core-complex", 3, big, [0, 0, 0])) == ["0-1,16-17", "2-3,18-19", "0-1,16-17"]


def test_the_larger_core_complex_comes_first(tmp_path: Path) -> None:
    topology = read_topology([1, 2, 3], machines.two_sockets(tmp_path))
    assert shown(bind("core-complex", 2, topology)) == ["2-3", "1"]


def test_the_gpu_gives_the_node(big: Topology) -> None:
    assert shown(bind("node", 2, big, [3, 1])) == ["12-15,28-31", "4-7,20-23"]
    assert shown(bind("socket", 2, big, [3, 1])) == ["8-15,24-31", "0-7,16-23"]
    assert shown(bind("exclusive", 3, big, [2, 0, 2])) == ["8-9,24-25", "0-3,16-19", "10-11,26-27"]
    assert shown(bind("exclusive", 1, big, [2, 2, 2])) == ["8-11,24-27"]  # the others have no rank


@pytest.mark.parametrize("gpu_nodes", [[], [3], [None, None], [3, None]])
def test_ranks_spread_when_not_all_have_a_gpu(big: Topology, gpu_nodes: list[int | None]) -> None:
    assert bind("node", 2, big, gpu_nodes) == bind("node", 2, big)


def test_only_allowed_cpus_count(tmp_path: Path) -> None:
    root = machines.two_sockets(tmp_path)
    topology = read_topology([1, 5, 6, 7, 21], root)
    assert shown(bind("node", 2, topology)) == ["1", "5-7,21"]
    assert shown(bind("socket", 1, topology)) == ["1,5-7,21"]
    # As many ranks as cores: each finds its own, however unevenly the nodes may be used.
    assert shown(bind("exclusive", 4, topology)) == ["1", "5,21", "6", "7"]


def test_offline_cpus_do_not_count(tmp_path: Path) -> None:
    root = machines.one_node(tmp_path, 4)
    machines.write(root, {"sys/devices/system/cpu/online": "0,2-3"})
    assert shown(bind("exclusive", 3, read_topology(range(4), root))) == ["0", "2", "3"]


def test_a_hybrid_processor(tmp_path: Path) -> None:
    """Two fast cores with two threads each, two slow ones with a cache of their own, no L3."""
    root = tmp_path
    machines.add_nodes(root, ["0-5"])
    for number, siblings in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        machines.add_cpu(root, number, socket=0, siblings=siblings, cache="0-3")
    for number in (4, 5):
        folder = f"sys/devices/system/cpu/cpu{number}"
        machines.write(
            root,
            {
                f"{folder}/topology/physical_package_id": "0",
                f"{folder}/topology/thread_siblings_list": str(number),
                f"{folder}/cache/index0/level": "1",
                f"{folder}/cache/index0/shared_cpu_list": str(number),
                f"{folder}/cache/index2/level": "2",
                f"{folder}/cache/index2/shared_cpu_list": "4-5",
            },
        )
    topology = read_topology(range(6), root)
    assert shown(bind("exclusive", 4, topology)) == ["0-1", "2-3", "4", "5"]
    assert shown(bind("core-complex", 2, topology)) == ["0-3", "4-5"]


def test_two_sockets_with_numa_switched_off(tmp_path: Path) -> None:
    machines.add_nodes(tmp_path, ["0-3"])
    for number in range(4):
        machines.add_cpu(tmp_path, number, socket=number // 2, siblings=str(number), cache="0-3")
    topology = read_topology(range(4), tmp_path)
    assert shown(bind("socket", 2, topology)) == ["0-1", "2-3"]
    assert shown(bind("node", 2, topology)) == ["0-3", "0-3"]


def test_a_container_without_sys(tmp_path: Path) -> None:
    topology = read_topology([4, 5, 6, 7], tmp_path)
    assert shown(bind("exclusive", 2, topology)) == ["4-5", "6-7"]
    for policy in ("node", "socket", "core-complex"):
        assert shown(bind(policy, 2, topology)) == ["4-7", "4-7"]


def test_a_socket_that_is_not_known(tmp_path: Path) -> None:
    machines.write(tmp_path, {"sys/devices/system/cpu/cpu0/topology/physical_package_id": "-1"})
    assert shown(bind("socket", 1, read_topology([0, 1], tmp_path))) == ["0-1"]


def test_more_ranks_than_cores_cannot_be_exclusive(tmp_path: Path) -> None:
    topology = read_topology(range(2), machines.one_node(tmp_path, 2))
    with pytest.raises(ConfigError, match=r"3 workers .* NUMA node 0, where 2 .*CPUs 0-1.*fewer"):
        bind("exclusive", 3, topology)
    assert len(bind("node", 3, topology)) == 3


def test_a_gpu_on_a_node_without_allowed_cpus(tmp_path: Path) -> None:
    topology = read_topology(range(4), machines.two_sockets(tmp_path))
    with pytest.raises(ConfigError, match=r"rank 1's GPU is on NUMA node 2.*only 0-3"):
        bind("node", 2, topology, [0, 2])


@pytest.mark.parametrize("policy", POLICIES)
@given(allowed=st.sets(st.integers(0, 31), min_size=1), ranks=st.integers(1, 40))
def test_every_rank_gets_allowed_cpus(
    big: Topology, policy: str, allowed: set[int], ranks: int
) -> None:
    topology = tuple(cpu for cpu in big if cpu.number in allowed)
    cores = len({cpu.core for cpu in topology})
    if policy == "exclusive" and ranks > cores:
        with pytest.raises(ConfigError):
            bind(policy, ranks, topology)
        return
    sets = bind(policy, ranks, topology)
    assert len(sets) == ranks
    assert all(own and own <= allowed for own in sets)
    if policy == "exclusive":
        by_core = [{cpu.core for cpu in topology if cpu.number in own} for own in sets]
        assert all(one.isdisjoint(other) for one, other in combinations(by_core, 2))


def test_on_this_machine() -> None:
    allowed = os.sched_getaffinity(0)
    topology = read_topology(allowed)
    assert {cpu.number for cpu in topology} == allowed
    for policy in POLICIES:
        (cpus,) = bind(policy, 1, topology)
        assert cpus
        assert cpus <= allowed
    cores = len({cpu.core for cpu in topology})
    assert sum(map(len, bind("exclusive", cores, topology))) == len(allowed)


@given(st.sets(st.integers(0, 300)))
def test_the_kernels_notation(numbers: set[int]) -> None:
    assert parse_ranges(",".join(ranges(numbers)) + "\n") == numbers


def test_the_notation_is_short() -> None:
    assert ",".join(ranges([5, 0, 1, 2, 7, 8])) == "0-2,5,7-8"
