"""How many ranks there may be on Dask workers."""

from __future__ import annotations

from typing import Any

import pytest

from torsh_runtime.errors import ConfigError, WorkerFailed

pytest.importorskip("distributed", reason="needs Dask (the extra dask)")
from distributed import Client, LocalCluster

from torsh_runtime.integrations.dask import DaskConfig, DaskIntegration, run
from torsh_runtime.integrations.dask.running import Limits

FINE: dict[str, Any] = {
    "num_workers": None,
    "min_workers": 1,
    "max_workers": None,
    "max_restarts": 3,
    "backend": None,
    "timeout": 60.0,
    "start_timeout": 60.0,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"num_workers": 0},
        {"num_workers": 2.0},
        {"num_workers": True},
        {"min_workers": 0},
        {"min_workers": None},
        {"max_restarts": -1},
        {"timeout": 0.0},
        {"start_timeout": -1.0},
        {"num_workers": 2, "min_workers": 3},
        {"num_workers": 3, "max_workers": 2},
        {"min_workers": 3, "max_workers": 2},
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"workers|max_restarts|timeout"):
        Limits(**{**FINE, **changes})


def test_the_most_ranks_are_those_at_first_unless_more_may_come() -> None:
    assert Limits(**FINE).most is None
    assert Limits(**{**FINE, "num_workers": 2}).most == 2
    assert Limits(**{**FINE, "num_workers": 2, "max_workers": 5}).most == 5


def test_only_a_client_is_a_client() -> None:
    for call in (lambda: run("tcp://localhost:8786", print), lambda: DaskIntegration(client=5)):
        with pytest.raises(ConfigError, match=r"a dask\.distributed\.Client is needed, and"):
            call()


def test_a_config_without_time_to_start_is_refused() -> None:
    with pytest.raises(ConfigError, match="start_timeout"):
        DaskConfig(start_timeout=0)


@pytest.mark.parametrize("protocol", ["inproc", "tcp"])
def test_workers_in_one_process_are_refused_and_a_scheduler_that_has_gone_is_named(
    protocol: str,
) -> None:
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(n_workers=2, protocol=protocol, **options) as cluster:
        client = Client(cluster.scheduler_address, timeout=0.2)
        with pytest.raises(ConfigError, match="the Dask workers are threads of one process"):
            run(client, print)
    with pytest.raises(WorkerFailed, match="the Dask scheduler has gone or does not answer"):
        run(client, print)
    client.close()
