"""Groups that are made, used and broken, and made again in the same processes."""

from __future__ import annotations

import gc
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.hosts import Host, needs_hosts, plugged, run_on_hosts
from support.ports import free_address
from support.random_steps import take_steps
from support.worlds import run_processes

import torsh_runtime as tr
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore

ROUNDS, ROUNDS_IN_FULL = 20, 1000
PATIENCE = 30.0
BRIEFLY = 0.3
"""Seconds, of groups that are to miss a deadline."""

Break = Callable[[ProcessGroup], None]


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return ROUNDS_IN_FULL if request.config.getoption("--soak") else ROUNDS


def held() -> Counter[str]:
    """How many threads, mappings and descriptors of each kind this process has."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().splitlines()
    found = Counter(line.split()[-1] for line in mapped if "memfd" in line)
    found["threads"] = len(os.listdir("/proc/self/task"))
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found[Path(f"/proc/self/fd/{number}").readlink().name.partition(":")[0]] += 1
    return found


def private_bytes() -> int:
    """What this process has of memory that it shares with nobody."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) * 1024


# --- how groups break; each of them on all ranks, within a group of its own ---


def abort(group: ProcessGroup) -> None:
    if group.rank == 0:
        group.abort()
    with pytest.raises(tr.CommAborted):
        group.barrier()


def abort_messages(group: ProcessGroup) -> None:
    with pytest.raises(tr.CommAborted):  # from any of them: a peer may be quicker
        send_and_abort(group)


def send_and_abort(group: ProcessGroup) -> None:
    work = group.recv(np.zeros(5), None, async_op=True)
    group.send(np.zeros(200_000), (group.rank + 1) % group.world_size, 7, async_op=True)
    if group.rank == 1:
        group.abort()
    work.wait()


def abandon(group: ProcessGroup) -> None:
    """Nobody waits for what is under way when the group is closed."""
    with suppress(tr.CommAborted):  # a peer may be quicker
        for _ in range(3):
            group.all_reduce(np.zeros(50_000), async_op=True)
        group.recv(np.zeros(5), (group.rank + 1) % group.world_size, async_op=True)
    group.close()


def disagree(group: ProcessGroup) -> None:
    with pytest.raises(tr.CommMismatch):
        group.all_reduce(np.zeros(3 + (group.rank == 1)))


def be_late(group: ProcessGroup) -> None:
    if group.rank == 0:
        default_group().barrier()
    with pytest.raises(tr.CommTimeout) as caught:
        group.barrier()
    assert 0 in caught.value.missing  # and who has left with the error, if deadlines coincide
    if group.rank != 0:
        default_group().barrier()


def leave(group: ProcessGroup) -> None:
    if group.rank == 0:
        return group.close()
    with pytest.raises(tr.PeerLost) as caught:
        group.barrier()
    assert caught.value.rank == 0
    return None


def end_well(group: ProcessGroup) -> None:
    group.barrier()


BREAKS: list[Break] = [abort, abort_messages, disagree, end_well]
BREAKS_OF_PARTS: list[Break] = [*BREAKS, abandon, leave]


def one_round(address: str, rank: int, ranks: int, choose: random.Random) -> None:
    tr.init_process_group("native", address, PATIENCE, ranks, rank)
    late = tr.new_group(timeout=BRIEFLY) if choose.random() < 0.1 else None
    if late is not None:
        be_late(late)
    others, part = tr.new_group(), tr.split(rank % 2)
    assert part is not None
    for group in (tr.new_group(), part):
        own, end = random.Random(choose.random()), choose.choice(BREAKS_OF_PARTS)
        take_steps(group, own, 2)
        others.barrier()  # an abort would end what a slower rank has not finished
        end(group)
    take_steps(default_group(), choose, 1)
    others.barrier()
    choose.choice(BREAKS)(default_group())
    tr.destroy_process_group()


def make_and_break(rank: int, ranks: int, addresses: list[str], rounds: int) -> Any:
    """What is left behind, and by how many bytes the process grew in the second half."""
    tr.destroy_process_group()
    choose = random.Random(0)
    one_round(addresses[0], rank, ranks, choose)
    before, half = held(), 0
    for turn in range(rounds):
        one_round(addresses[turn % len(addresses)], rank, ranks, choose)
        if turn == rounds // 2:
            half = private_bytes()
    grown = private_bytes() - half
    left = held() - before
    tr.init_process_group("native", addresses[0], PATIENCE, ranks, rank)
    return left, grown


def check(results: list[Any]) -> None:
    errors = [result.error.trace for result in results if isinstance(result, Raised)]
    assert not errors, "\n".join(errors)
    for left, grown in results:
        assert not left
        assert grown < 32 << 20


def test_in_a_node(rounds: int) -> None:
    addresses = [free_address() for _ in range(8)]
    ranks = 4
    check(
        run_processes(ranks, lambda rank: make_and_break(rank, ranks, addresses, rounds), PATIENCE)
    )


def make_soon_after(rank: int, address: str, served: tuple[int, int]) -> float:
    """Rank 1 finds the store of a group that rank 0 has not quite left."""
    tr.destroy_process_group()
    if rank == 0:
        endpoint = address.replace("tcp://", "tcp:")
        earlier = HostedStore.start(endpoint, b"")
        with closing(StoreClient.connect(endpoint, b"", PATIENCE)) as client:
            client.add("groups/1", 1)
            os.write(served[1], b"1")
            while client.add("groups/1", 0) < 2:  # until rank 1 has come
                time.sleep(0.01)
        earlier.close()
    else:
        os.read(served[0], 1)
    tr.init_process_group("native", address, PATIENCE, 2, rank)
    both = np.ones(1)
    tr.all_reduce(both)
    return float(both[0])


def test_the_store_of_an_earlier_group_is_not_taken_for_the_next() -> None:
    address, served = free_address(), os.pipe()
    try:
        found = run_processes(2, lambda rank: make_soon_after(rank, address, served), PATIENCE)
    finally:
        os.close(served[0])
        os.close(served[1])
    assert found == [2.0, 2.0]


@needs_hosts
@pytest.mark.netns
def test_between_nodes(rounds: int) -> None:
    def body(rank: int) -> Any:
        addresses = [f"tcp://{places[0].ipv4}:{29501 + number}" for number in range(8)]
        return make_and_break(rank, len(places), addresses, rounds)

    with plugged(2) as hosts:
        places: list[Host] = [hosts[0], hosts[0], hosts[1], hosts[1]]
        check(run_on_hosts(places, body, PATIENCE))
