"""Which modules FullyShardedDataParallel takes for units."""

from __future__ import annotations

from torsh_runtime import nn
from torsh_runtime.modules import adapter_class


def test_containers_that_nobody_calls_are_none() -> None:
    blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    adapter = adapter_class(blocks)(blocks)
    assert not adapter.is_called(blocks)
    assert all(map(adapter.is_called, blocks))
    assert adapter.is_called(nn.Sequential(nn.Linear(8, 8)))
