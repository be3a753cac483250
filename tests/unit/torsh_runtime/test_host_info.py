"""Who shares a node with whom."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from torsh_runtime.backends.native.host_info import (
    TOKEN_BYTES,
    HostInfo,
    Terms,
    check_terms,
    layout,
)
from torsh_runtime.errors import CommError, ConfigError

HERE = HostInfo(
    pid=1,
    machine="boot-a",
    pid_namespace="pid:[1]",
    network="net:[1]",
    host="alpha",
    offer="offer",
    token=bytes(TOKEN_BYTES),
    terms=Terms(),
)


def test_ranks_of_one_machine_share_a_node() -> None:
    assert layout({rank: replace(HERE, pid=rank) for rank in range(4)}) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("what", ["machine", "pid_namespace", "network"])
def test_other_machines_and_namespaces_are_other_nodes(what: str) -> None:
    there = replace(HERE, **{what: "another"})
    assert layout({0: HERE, 1: there, 2: HERE, 3: there}) == [[0, 2], [1, 3]]


def test_nodes_stand_in_the_order_of_their_first_ranks() -> None:
    machines = {5: "a", 4: "b", 3: "a", 2: "c", 1: "b", 0: "c"}
    places = {rank: replace(HERE, machine=machine) for rank, machine in machines.items()}
    assert layout(places) == [[0, 2], [1, 4], [3, 5]]


def test_the_host_name_tells_no_nodes_apart() -> None:
    assert layout({0: HERE, 1: replace(HERE, host="beta")}) == [[0, 1]]


def test_a_place_survives_the_store() -> None:
    own = HostInfo.here("offer", b"\0\xff" * 16, Terms({"algorithm": "ring"}, {"block": 4096}))
    assert own.pid == os.getpid()
    assert HostInfo.unpack(0, own.pack()) == own


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", b"\x80", b"\x81\xa3pid\x01", b"\x91\x01"])
def test_words_that_are_no_place_name_the_rank(data: bytes) -> None:
    with pytest.raises(CommError, match=r"rank 7 .* same version"):
        HostInfo.unpack(7, data)


def on(machine: str, everywhere: int, in_node: int) -> HostInfo:
    return replace(HERE, machine=machine, terms=Terms({"a": everywhere}, {"b": in_node}))


def test_nodes_may_have_terms_of_their_own() -> None:
    check_terms({0: on("x", 1, 1), 1: on("y", 1, 2), 2: on("x", 1, 1), 3: on("y", 1, 2)})


def test_other_terms_than_the_first_ranks_are_named() -> None:
    with pytest.raises(ConfigError, match=r"ranks 0 and 2 .* a is 1 on rank 0 and 5 on rank 2"):
        check_terms({2: on("y", 5, 1), 0: on("x", 1, 1), 1: on("x", 1, 1)})


def test_other_terms_within_a_node_are_named() -> None:
    places = {0: on("x", 1, 1), 1: on("y", 1, 2), 3: on("y", 1, 3)}
    with pytest.raises(ConfigError, match=r"ranks 1 and 3 .* b is 2 on rank 1 and 3 on rank 3"):
        check_terms(places)
    bare = replace(HERE, terms=Terms({"a": 1}, {}))
    with pytest.raises(ConfigError, match="b is not given on rank 0 and 1 on rank 1"):
        check_terms({0: bare, 1: replace(HERE, terms=Terms({"a": 1}, {"b": 1}))})
