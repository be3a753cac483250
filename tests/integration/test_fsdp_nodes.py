"""FullyShardedDataParallel over two nodes of two ranks each."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
from support.forked import Raised
from support.hosts import INTERFACE, needs_hosts, plugged, run_on_hosts

pytestmark = [
    needs_hosts,
    pytest.mark.netns,
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
STRATEGIES = ("full", "grad-and-optimizer", "none", "hybrid")


def work(rank: int) -> Any:
    from support.fsdp_training import between_nodes, data_parallel, in_place

    found = {strategy: between_nodes(strategy, rank, 4) for strategy in STRATEGIES}
    return {**found, "in place": in_place(rank, 4), "ddp": data_parallel(rank, 4)}


def test_every_strategy_trains_as_data_parallelism_does() -> None:
    import torch

    with plugged(2) as hosts:
        results = run_on_hosts([hosts[0], hosts[0], hosts[1], hosts[1]], work, 90.0)
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
        for strategy in (*STRATEGIES, "in place"):
            for name, value in result["ddp"].items():
                torch.testing.assert_close(result[strategy][name], value, rtol=1e-4, atol=2e-5)


def receives(rank: int) -> tuple[float, bool, bool]:
    """What comes to this rank's node in a forward pass, of all parameters; whether they are whole
    in it, and whether they are after it.
    """
    import torch

    import torsh_runtime as tr

    torch.manual_seed(0)  # one of so many random weights may be 0
    layers = [torch.nn.Linear(512, 512, bias=False) for _ in range(4)]
    assert all(bool(each.weight.all()) for each in layers)
    size = sum(each.weight.nbytes for each in layers)
    model: Any = tr.FullyShardedDataParallel(torch.nn.Sequential(*layers))
    memories = [memory for unit in model._sharding.units for _, memory in unit.laid]
    seen: list[bool] = []
    layers[1].register_forward_hook(lambda *_: seen.append(bool(memories[1].whole.all())))
    with torch.no_grad():
        before = _num_received()
        model(torch.ones(1, 512))
        came = _num_received() - before
    tr.barrier()
    pages = torch.stack([memory.whole.view(-1, 1024).any(1) for memory in memories])
    return came / size, seen[0], bool(pages.float().mean() > 0.1)


def _num_received() -> int:
    """Bytes of this node until now, told while nothing is under way."""
    import torsh_runtime as tr

    tr.barrier()
    time.sleep(0.2)
    (line,) = (
        each
        for each in Path("/proc/self/net/dev").read_text().splitlines()
        if each.strip().startswith(f"{INTERFACE}:")
    )
    tr.barrier()
    return int(line.partition(":")[2].split()[0])


def test_a_node_gets_what_its_ranks_need_once_and_lets_go_of_it() -> None:
    with plugged(2) as hosts:
        for result in run_on_hosts([hosts[0], hosts[0], hosts[1], hosts[1]], receives, 60.0):
            assert not isinstance(result, Raised), result.error.args[0]
            share, is_whole, stays = result
            assert 0.4 < share < 0.7  # the other node has half of it
            assert is_whole
            assert not stays


def uneven(rank: int) -> str:
    from support.ddp_faults import raised
    from support.fsdp_training import between_nodes

    return raised(lambda: between_nodes("hybrid", rank, 3))


def test_nodes_of_unequal_numbers_of_ranks_need_groups() -> None:
    with plugged(2) as hosts:
        for text in run_on_hosts([hosts[0], hosts[0], hosts[1]], uneven, 60.0):
            assert "unequal numbers of ranks, 2, 1" in text


def trains_whole(rank: int) -> dict[tuple[str, str], float]:
    """Return how far parameters are from one process's, with optimizers that need whole ones."""
    from support.whole_optimizers import KINDS, difference

    ways = [("Lamb", "full"), ("Lamb", "hybrid"), ("Muon", "grad-and-optimizer")]
    return {
        (kind, strategy): difference(kind, rank, 4, False, strategy=strategy)
        for kind, strategy in ways
        if kind in KINDS
    }


def test_optimizers_of_whole_matrices_train_over_nodes_as_in_one_process() -> None:
    """torch's function clips gradients, whose norm is that of all ranks."""
    with plugged(2) as hosts:
        for result in run_on_hosts([hosts[0], hosts[0], hosts[1], hosts[1]], trains_whole, 90.0):
            assert not isinstance(result, Raised), result.error.args[0]
            assert {way: far for way, far in result.items() if not far < 1e-12} == {}
