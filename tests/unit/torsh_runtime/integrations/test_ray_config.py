"""How the workers of a training on Ray are asked for."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray", reason="needs Ray (the extra ray)")
import ray

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.ray import RayConfig, RayIntegration, TorshConfig
from torsh_runtime.integrations.ray.integration import _fitting


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", 0),
        ("num_workers", "2"),
        ("max_failures", -2),
        ("max_failures", 1.5),
        ("cpus_per_worker", "1"),
        ("cpus_per_worker", 0),
        ("gpus_per_worker", float("nan")),
        ("timeout", 0),
        ("timeout", "soon"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        RayConfig(**{name: value})


def test_workers_without_time_to_meet_are_refused() -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        TorshConfig(timeout_s=0)


@pytest.mark.parametrize(
    ("name", "value"), [("num_samples", 0), ("search", "best"), ("scheduler", "x"), ("mode", "x")]
)
def test_a_search_that_makes_no_sense_is_refused_before_ray_starts(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        RayIntegration().run_tuning(print, {}, metric="loss", **{name: value})
    assert not ray.is_initialized()


def test_places_are_counted_by_what_is_short_and_despite_rounding() -> None:
    assert _fitting({"CPU": 0.3, "GPU": 1}, {"CPU": 0.1}) == 3
    assert _fitting({"CPU": 8, "GPU": 1}, {"CPU": 2, "GPU": 0.5}) == 2
    assert _fitting({"CPU": 8}, {"CPU": 1, "GPU": 1}) == 0
