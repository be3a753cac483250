"""FullyShardedDataParallel over two nodes of two ranks each."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from support.hosts import needs_hosts, plugged, run_on_hosts
from support.worlds import Raised

pytestmark = [
    needs_hosts,
    pytest.mark.netns,
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
STRATEGIES = ("full", "grad-and-optimizer", "none", "hybrid")


def work(rank: int) -> Any:
    from support.fsdp_training import between_nodes, data_parallel

    found = {strategy: between_nodes(strategy, rank, 4) for strategy in STRATEGIES}
    return {**found, "ddp": data_parallel(rank, 4)}


def test_every_strategy_trains_as_data_parallelism_does() -> None:
    import torch

    with plugged(2) as hosts:
        results = run_on_hosts([hosts[0], hosts[0], hosts[1], hosts[1]], work, 60.0)
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
        for strategy in STRATEGIES:
            for name, value in result["ddp"].items():
                torch.testing.assert_close(result[strategy][name], value, rtol=1e-4, atol=2e-5)


def uneven(rank: int) -> str:
    from support.ddp_faults import raised
    from support.fsdp_training import between_nodes

    return raised(lambda: between_nodes("hybrid", rank, 3))


def test_nodes_of_unequal_numbers_of_ranks_need_groups() -> None:
    with plugged(2) as hosts:
        for text in run_on_hosts([hosts[0], hosts[0], hosts[1]], uneven, 60.0):
            assert "unequal numbers of ranks, 2, 1" in text
