"""Many groups within few descriptors."""

from __future__ import annotations

import os
import resource
from typing import Any

import numpy as np
import pytest
from support.worlds import Raised, run_processes

import torsh_runtime as tr

_LIMIT = 1024


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _many_groups(rank: int, groups: int) -> tuple[int, float]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_LIMIT, _LIMIT))
    before, total = _descriptors(), 0.0
    made = [tr.new_group(timeout=120) for _ in range(groups)]
    for group in made:
        array = np.ones(1)
        tr.all_reduce(array, group=group)
        total += float(array[0])
    held = _descriptors() - before
    for group in made:
        tr.destroy_process_group(group)
    return held, total


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "groups"), [(2, 1000), (8, 64)])
def test_groups_of_a_node_share_what_they_hold(ranks: int, groups: int) -> None:
    results: list[Any] = run_processes(ranks, lambda rank: _many_groups(rank, groups), 300)
    assert not [each.error for each in results if isinstance(each, Raised)]
    assert [total for _, total in results] == [float(ranks * groups)] * ranks
    assert max(held for held, _ in results) <= 0  # less, if one of meeting was closed meanwhile
