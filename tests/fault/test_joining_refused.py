"""A rank that has met the others and then does not get what a group needs."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_processes

import torsh_runtime as tr

_ROOM = 2 << 20
"""Bytes of address space that are left: less than a segment takes, more than meeting does."""


def _join_a_group_without_memory_for_rank_1(rank: int) -> Any:
    group = tr.new_group()
    if rank == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, hard))
    try:
        group.configure(tr.get_store(), "", rank, group.world_size, 1, timeout=60)
    except (tr.errors.CommError, tr.errors.BackendUnavailable) as error:
        return type(error).__name__, str(error)
    return "no error", ""


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_others_are_told_who_failed_and_why(ranks: int) -> None:
    results = run_processes(ranks, _join_a_group_without_memory_for_rank_1)
    assert not any(isinstance(result, Raised) for result in results), results
    assert results[1][0] == "BackendUnavailable"
    for kind, words in results[:1] + results[2:]:
        assert kind == "CommError"
        assert "rank 1 gave up joining the group" in words
        assert "cannot map the shared segment" in words
