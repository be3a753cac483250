"""checkpoint_saved: what it refuses, and where it does nothing."""

from __future__ import annotations

import math

import pytest

from torsh_runtime.elastic import checkpoint_saved
from torsh_runtime.errors import ConfigError


@pytest.mark.parametrize("window", [-1, math.inf, math.nan])
def test_a_window_is_a_number_of_seconds(window: float) -> None:
    with pytest.raises(ConfigError, match="window must be"):
        checkpoint_saved(window)


def test_without_torshrun_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORSH_STORE_ENDPOINT", raising=False)
    checkpoint_saved()


def test_only_rank_0_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORSH_STORE_ENDPOINT", "unix:@torsh-nobody")
    checkpoint_saved()
