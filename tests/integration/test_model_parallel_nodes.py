"""Stages, data and parts of layers over two nodes of two ranks each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import model_parallel
from support.forked import Raised
from support.hosts import needs_hosts, plugged, run_on_hosts

pytestmark = [needs_hosts, pytest.mark.netns]

DDP, FSDP = "DistributedDataParallel", "FullyShardedDataParallel"
CASES = (
    (DDP, "1f1b", {"pp": 2, "dp": 1, "tp": 2}),
    (DDP, "zb-h1", {"dp": 1, "tp": 2, "pp": 2}),
    (FSDP, "1f1b", {"tp": 1, "dp": 2, "pp": 2}),
    (FSDP, "gpipe", {"pp": 1, "dp": 1, "tp": 4}),
)
"""Wrapper, schedule and mesh; the last axis but one, or more, crosses from node to node."""


def work(directory: Path, rank: int) -> list[Any]:
    return [
        model_parallel.on_mesh("nn", sizes, schedule, wrapper, 2, directory / str(number))
        for number, (wrapper, schedule, sizes) in enumerate(CASES)
    ]


def test_trains_as_one_process_does(tmp_path: Path) -> None:
    with plugged(2) as hosts:
        places = [hosts[0], hosts[0], hosts[1], hosts[1]]
        results = run_on_hosts(places, partial(work, tmp_path), 60.0)
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    for number, case in enumerate(CASES):
        first, *others = [result[number] for result in results]
        assert all(size < 1e-9 for size in first["apart"].values()), case
        assert all(other["bits"] == first["bits"] for other in others)
