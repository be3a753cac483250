"""FullyShardedDataParallel where gradients come twice, and where units are not used as foreseen."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from support.forked import Raised
from support.hosts import needs_hosts, plugged, run_on_hosts
from support.worlds import run_processes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]


def check(results: list[Any], leaves_out: tuple[str, ...] = ()) -> None:
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
        for way, sums in result.items():
            if way not in leaves_out:
                assert sums == pytest.approx(result["plain"], abs=1e-5), way


def bodies(stops: bool, directly: bool) -> Any:
    from support.fsdp_repeats import repeats

    return repeats(stops, directly)


@pytest.mark.parametrize("stops", [False, True])
def test_gradients_that_come_twice_in_a_node(stops: bool) -> None:
    check(run_processes(2, bodies(stops, False), 60.0))


@pytest.mark.netns
@needs_hosts
@pytest.mark.parametrize(("stops", "directly"), [(False, False), (True, False), (False, True)])
def test_the_same_over_nodes(stops: bool, directly: bool) -> None:
    with plugged(2) as hosts:
        places = [hosts[0], hosts[0], hosts[1], hosts[1]]
        check(run_on_hosts(places, bodies(stops, directly), 60.0))


def test_zero_grad_drops_what_no_sync_has_kept() -> None:
    from support.fsdp_repeats import dropped_gradients

    for result in run_processes(2, dropped_gradients, 60.0):
        assert not isinstance(result, Raised), result.error.args[0]
        assert result[0] == pytest.approx(result[1])
