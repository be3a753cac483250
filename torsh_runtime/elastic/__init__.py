"""Supports jobs whose workers and nodes come and go: state to resume from, and reports to the
job."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torsh_runtime.elastic.growth import checkpoint_saved
from torsh_runtime.elastic.time_limit import time_left

if TYPE_CHECKING:
    from torsh_runtime.elastic.agent import ElasticAgent
    from torsh_runtime.elastic.joining import join
    from torsh_runtime.elastic.sampler import ElasticSampler
    from torsh_runtime.elastic.state import State, run
    from torsh_runtime.elastic.step import Step
    from torsh_runtime.elastic.training import Training

__all__ = [
    "ElasticAgent",
    "ElasticSampler",
    "State",
    "Step",
    "Training",
    "checkpoint_saved",
    "join",
    "run",
    "time_left",
]
_HOMES = {
    "ElasticAgent": "agent",
    "ElasticSampler": "sampler",
    "State": "state",
    "Step": "step",
    "Training": "training",
    "join": "joining",
    "run": "state",
}


def __getattr__(name: str) -> Any:
    """Import names that depend on models on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
