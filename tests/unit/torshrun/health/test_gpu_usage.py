"""How busy the GPUs that workers may use are."""

from __future__ import annotations

from typing import Any

import pytest

from torshrun.health.gpu_health import GpuReading
from torshrun.health.gpu_usage import GpuUsage, usage_of


def of(*facts: dict[str, Any]) -> GpuUsage:
    return usage_of([GpuReading(index=0, pci="0000:1b:00.0", **each) for each in facts])


def test_the_busiest_gpu_counts_and_one_that_is_throttled() -> None:
    capped, hot = {"utilization": 12, "reasons": 0x4}, {"reasons": 0x40}
    assert of(capped, {"utilization": 87}) == GpuUsage(0.87, is_throttled=False)
    assert of(capped, {"utilization": 87}, hot) == GpuUsage(0.87, is_throttled=True)


@pytest.mark.parametrize("facts", [(), ({},), ({"error": "GPU is lost"},)])
def test_what_is_not_told_is_unknown(facts: tuple[dict[str, Any], ...]) -> None:
    assert of(*facts) == GpuUsage(None, is_throttled=False)
