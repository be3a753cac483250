"""What an nvidia-smi tells of the GPUs that workers may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import machines
from support.processes import soon

from torshrun.health.gpu_usage import UNKNOWN, GpuMeter, GpuUsage
from torshrun.procfs import read_stat

Meter = Callable[..., GpuMeter]


@pytest.fixture
def meter(tmp_path: Path) -> Iterator[Meter]:
    """meter(script): of a machine of four GPUs with such an nvidia-smi."""
    made: list[GpuMeter] = []

    def make(script: str, **environ: str) -> GpuMeter:
        program = tmp_path / "bin/nvidia-smi"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        path = f"{program.parent}:{os.environ['PATH']}"
        root = machines.four_gpus(tmp_path / "root")
        made.append(GpuMeter({"PATH": path, **environ}, root))
        return made[-1]

    yield make
    for each in made:
        each.close()


def told(*lines: str) -> str:
    return "".join(f"echo '{line}'\n" for line in lines) + "exec sleep 1000"


def test_the_busiest_gpu_counts_and_one_that_is_throttled(meter: Meter) -> None:
    found = meter(
        told(
            "00000000:1B:00.0, 12, 0x0000000000000004",  # a power cap alone
            "00000000:2B:00.0, 87, 0x0000000000000000",
            "00000000:3B:00.0, [N/A], 0x0000000000000040",
        )
    )
    assert soon(lambda: found.read() == GpuUsage(0.87, is_throttled=True))


def test_gpus_that_workers_do_not_see_do_not_count(meter: Meter) -> None:
    lines = "00000000:1B:00.0, 12, 0x0", "00000000:2B:00.0, 87, 0x0000000000000008"
    found = meter(told(*lines), CUDA_VISIBLE_DEVICES="0")
    assert soon(lambda: found.read() == GpuUsage(0.12, is_throttled=False))


def test_the_newest_line_of_a_gpu_counts(meter: Meter) -> None:
    found = meter(told("00000000:1B:00.0, 90, 0x0", "00000000:1B:00.0, 10, 0x0"))
    assert soon(lambda: found.read() == GpuUsage(0.1, is_throttled=False))


@pytest.mark.parametrize(
    "line",
    [
        "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.",
        "00000000:1B:00.0, 1, 0x1, more",
        "nonsense, 1, 0x0",
        "\\377, \\377, \\377",
        "00000000:1B:00.0, [Unknown Error], [N/A]",
    ],
)
def test_what_makes_no_sense_is_unknown(meter: Meter, line: str) -> None:
    found = meter(told(line, "00000000:2B:00.0, 50, 0x0"))
    assert soon(lambda: found.read() == GpuUsage(0.5, is_throttled=False))


def test_one_that_ends_leaves_it_unknown(meter: Meter) -> None:
    found = meter("exit 9")
    assert found.read() == UNKNOWN


def test_without_gpus_nothing_is_started(tmp_path: Path) -> None:
    found = GpuMeter(os.environ, tmp_path)
    assert found._process is None
    assert found.read() == UNKNOWN
    found.close()


def test_it_ends_with_the_meter(meter: Meter) -> None:
    found = meter(told("00000000:1B:00.0, 1, 0x0"))
    assert found._process is not None
    pid = found._process.pid
    found.close()
    assert read_stat(pid) is None
    assert found.read() == UNKNOWN
