"""Checks of GPUs whose driver is late."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support import machines
from support.nvml import FakeNvml

from torshrun.agent import gpus
from torshrun.health.gpu_probe import GpuProbe


def test_checks_go_on_when_a_late_driver_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "PATIENCE", 0.5)
    nvml, said = FakeNvml(tmp_path / "nvml"), list[str]()
    nvml.tell({}, ["late"])
    probe = GpuProbe({**os.environ, **nvml.environ}, machines.four_gpus(tmp_path / "root"))
    checks = gpus.GpuChecks(probe, said.append)

    async def checked() -> list[str]:
        found = [await checks.before_start(), await checks.before_start()]
        nvml.tell({1: {"error": 15}})
        for _ in range(100):
            found.append(await checks.before_start())
            if found[-1]:
                break
            await asyncio.sleep(0.1)
        return found

    *early, last = asyncio.run(checked())
    checks.close()
    assert {*early} == {""}
    assert "GPU 1 (0000:2b:00.0): cannot be reached (GPU is lost)" in last
    assert len(said) == 2
    assert "has not answered for 0.5 s; their health is not checked" in said[0]
    assert "answers again" in said[1]
