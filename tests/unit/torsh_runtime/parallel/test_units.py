"""Which modules FullyShardedDataParallel takes for units."""

from __future__ import annotations

from torsh_runtime import nn
from torsh_runtime.framework import framework_of


def test_containers_that_nobody_calls_are_none() -> None:
    blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    framework = framework_of(blocks)
    assert not framework.is_called(blocks)
    assert all(map(framework.is_called, blocks))
    assert framework.is_called(nn.Sequential(nn.Linear(8, 8)))
