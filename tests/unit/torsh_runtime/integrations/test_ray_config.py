"""How the workers of a training on Ray are asked for."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray", reason="needs Ray (the extra ray)")
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.ray import RayConfig, TorshConfig


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
