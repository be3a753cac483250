"""An optimizer that is spread over ranks steps experts, of which ranks have others, as one process
does."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support import distributed_optimizer
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

has_torch = importlib.util.find_spec("torch") is not None
needs_torch = [pytest.mark.torch, pytest.mark.skipif(not has_torch, reason="needs torch")]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])
RANKS, PARAMETERS = 4, 10


@cache
def trained(framework: str) -> dict[int, list[Any]]:
    with TemporaryDirectory() as directory:
        bodies = {
            experts: partial(
                distributed_optimizer.beside_one_process,
                framework,
                experts,
                Path(directory, str(experts)),
            )
            for experts in (2, 4)
        }
        return run_in_one_world(RANKS, bodies, 60.0)


@with_both
@pytest.mark.parametrize("experts", [2, 4])
def test_steps_experts_as_one_process_does(experts: int, framework: str) -> None:
    results, replicas = trained(framework)[experts], dict[str, bytes]()
    for result in results:
        assert not isinstance(result, Raised), result.error.trace
        assert {name: far for name, far in result["apart"].items() if not far < 1e-9} == {}
        assert result["kept"] < PARAMETERS
        replicas |= result["bits"]
    for result in results:
        assert result["bits"].items() <= replicas.items()


def test_what_does_not_fit_is_refused_on_every_rank() -> None:
    expected = {
        "shapes": "on rank(s) 1, 3. One rank steps a parameter",
        "values": "on rank(s) 1, 3. One rank steps a parameter",
        "gradients": "with a gradient of checksum ",
        "no mesh": "does not tell who has the same part of it",
        "sharded": "a FullyShardedDataParallel in the model has spread",
        "another's parameters": "parameter 10, of shape (2, 6), is none of the model's",
        "not the same": "DistributedOptimizer differs between ranks",
        "gathered": "gather_state_dict() is for parameters that all ranks of the group have",
        "of one process": "the state of one process is for parameters that all ranks",
        "another's state": "the optimizer's state is of other parameters than this rank steps",
    }
    for result in run_processes(RANKS, distributed_optimizer.refusals, 30.0):
        assert not isinstance(result, Raised), result.error.trace
        assert result.keys() == expected.keys()
        for name, text in expected.items():
            assert text in result[name], name
