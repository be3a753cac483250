"""Experts in blocks of which ranks have parts of the sequence compute what one process does."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support import sequence_experts
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

has_torch = importlib.util.find_spec("torch") is not None
needs_torch = [pytest.mark.torch, pytest.mark.skipif(not has_torch, reason="needs torch")]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])


@cache
def trained(framework: str) -> dict[str, list[Any]]:
    bodies = {
        name: partial(sequence_experts.beside_one_process, name, framework)
        for name in sequence_experts.CASES
    }
    return run_in_one_world(4, bodies, 60.0)


@with_both
@pytest.mark.parametrize("name", sequence_experts.CASES)
def test_trains_as_one_process_does(name: str, framework: str) -> None:
    replicas: dict[str, bytes] = {}
    for result in trained(framework)[name]:
        assert not isinstance(result, Raised), result.error.trace
        assert {key: far for key, far in result["apart"].items() if not far < 1e-9} == {}
        replicas |= result["bits"]
    for result in trained(framework)[name]:
        assert result["bits"].items() <= replicas.items()


def test_what_does_not_fit_is_refused_on_every_rank() -> None:
    expected = {
        "alike": "",
        "no numbers": "",
        "untold behind no numbers": "were given different tokens, as sequence parallelism does",
        "parts untold": "were given different tokens, as sequence parallelism does",
        "whole, and told of parts": "were given the same tokens",
        "no axis": "pass axes of one mesh, as mesh['tp'] and mesh['ep']",
        "another mesh": "is of a mesh without the axis 'ep'",
        "told on one rank": "MixtureOfExperts differs between ranks",
        "not among the data": "have parts of one sequence, and not all are among",
        "whole": "",
    }
    for result in run_processes(4, sequence_experts.refusals):
        assert not isinstance(result, Raised), result.error.trace
        assert result.keys() == expected.keys()
        for name, text in expected.items():
            assert text in result[name], name
        assert {key for key, text in result.items() if not text} == {"alike", "no numbers", "whole"}
