"""What a process of its own reads from NVML, and how it ends."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import machines
from support.nvml import PLACES, FakeNvml
from support.processes import soon

from torshrun.health.gpu_health import GpuReading, faults
from torshrun.health.gpu_probe import GpuProbe


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return machines.four_gpus(tmp_path / "root")


@pytest.fixture
def probe(nvml: FakeNvml, root: Path) -> Iterator[GpuProbe]:
    nvml.tell({})
    made = GpuProbe({**os.environ, **nvml.environ}, root)
    yield made
    made.close()


def read(probe: GpuProbe) -> tuple[GpuReading, ...]:
    """What is known, which must be something."""
    found = probe.read(20)
    assert found is not None, probe.failure
    return found


def test_gpus_are_read(probe: GpuProbe, nvml: FakeNvml) -> None:
    nvml.tell({2: {"reasons": 0x40, "ecc": 3, "width": 8}}, ["xid 1 31", "xid 2 79"])
    first, second, third, _ = read(probe)
    assert [each.pci for each in read(probe)] == [*PLACES]
    assert (first.memory_used, first.utilization, first.power) == (1 << 30, 87, 412_500)
    assert (first.temperature, first.ecc, first.xids) == (61, 0, ())
    assert (first.width, first.width_max, first.is_throttled) == (16, 16, False)
    assert (second.xids, third.xids, third.ecc, third.is_throttled) == ((31,), (79,), 3, True)


def test_xids_are_kept_for_those_who_ask_later(probe: GpuProbe, nvml: FakeNvml) -> None:
    nvml.tell({}, ["xid 0 13"])
    assert [read(probe)[0].xids for _ in range(2)] == [(13,), (13,)]


def test_gpus_that_workers_do_not_see_are_not_told(nvml: FakeNvml, root: Path) -> None:
    nvml.tell({0: {"error": 15}})
    environ = {**os.environ, **nvml.environ, "CUDA_VISIBLE_DEVICES": "3,1"}
    probe = GpuProbe(environ, root)
    assert [each.pci for each in read(probe)] == [PLACES[3], PLACES[1]]
    probe.close()


def test_a_lost_gpu_has_an_error(probe: GpuProbe, nvml: FakeNvml) -> None:
    nvml.tell({1: {"error": 15}})
    assert [each.error for each in read(probe)] == ["", "GPU is lost", "", ""]
    nvml.tell({1: {"handle": 999}})
    assert [(each.pci, each.error) for each in read(probe)] == [
        (place, "Unknown Error" if place == PLACES[1] else "") for place in PLACES
    ]


def test_where_there_is_no_gpu_nothing_is_started(nvml: FakeNvml, tmp_path: Path) -> None:
    probe = GpuProbe({**os.environ, **nvml.environ}, tmp_path / "nothing")
    assert (probe.knows, probe.read(20), probe.failure) == (False, None, "")


def test_gpus_that_are_hidden_are_not_looked_at(nvml: FakeNvml, root: Path) -> None:
    probe = GpuProbe({**os.environ, **nvml.environ, "CUDA_VISIBLE_DEVICES": ""}, root)
    assert not probe.knows


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("crash", "the process that asks it has ended"),
        ("init 18", "Driver/library version mismatch"),
    ],
)
def test_a_driver_that_fails_is_given_up(nvml: FakeNvml, root: Path, line: str, why: str) -> None:
    nvml.tell({}, [line])
    probe = GpuProbe({**os.environ, **nvml.environ}, root)
    assert probe.read(20) is None
    assert why in probe.failure
    assert not probe.knows


def test_a_driver_that_is_late_is_asked_again(nvml: FakeNvml, root: Path) -> None:
    """Those who wait for it do so once, until it has answered."""
    nvml.tell({}, ["late"])
    probe = GpuProbe({**os.environ, **nvml.environ}, root)
    assert probe.read(0.5) is None
    begun = time.monotonic()
    assert probe.read(20) is None
    assert time.monotonic() - begun < 10
    assert "has not answered for 0.5 s" in probe.failure
    nvml.tell({1: {"ecc": 3}})
    assert soon(lambda: probe.read(0.5) is not None)
    assert ([each.ecc for each in read(probe)], probe.failure) == ([0, 3, 0, 0], "")
    probe.close()


def test_who_only_looks_does_not_end_a_driver_that_is_slow(nvml: FakeNvml, root: Path) -> None:
    nvml.tell({}, ["hang"])
    probe = GpuProbe({**os.environ, **nvml.environ}, root)
    assert probe.read(0.5, gives_up=False) is None
    begun = time.monotonic()
    assert probe.read(20, gives_up=False) is None
    assert time.monotonic() - begun < 10
    assert probe.knows
    probe.close()
    assert not probe.knows


def test_close_ends_a_wait(nvml: FakeNvml, root: Path) -> None:
    nvml.tell({}, ["hang"])
    probe = GpuProbe({**os.environ, **nvml.environ}, root)
    waiting = threading.Thread(target=probe.read, args=(60,))
    waiting.start()
    assert soon(lambda: probe._is_asked)
    probe.close()
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_library_that_is_missing_is_told(root: Path) -> None:
    probe = GpuProbe({**os.environ, "LD_LIBRARY_PATH": ""}, root)
    assert probe.read(20) is None
    assert "libnvidia-ml.so.1" in probe.failure


def test_the_process_ends_with_what_asks(probe: GpuProbe) -> None:
    assert probe.read(20)
    process = probe._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert soon(lambda: process.poll() is not None)


def test_readings_of_two_moments_are_compared(probe: GpuProbe, nvml: FakeNvml) -> None:
    nvml.tell({0: {"ecc": 2}})
    before = read(probe)
    assert [*faults(before, ())] == []  # another job's
    nvml.tell({0: {"ecc": 4}})
    found = [*faults(read(probe), before)]
    assert found == ["GPU 0 (0000:1b:00.0): uncorrectable ECC errors: 2 since the last round"]


@pytest.mark.parametrize(
    ("listed", "found"),
    [("MIG-aa", [2]), ("MIG-bb,MIG-aa", [2]), ("MIG-cc", []), ("GPU-3a,MIG-aa", [3, 2])],
)
def test_instances_are_of_their_gpu(
    nvml: FakeNvml, root: Path, listed: str, found: list[int]
) -> None:
    nvml.tell({}, ["mig 2 MIG-aa", "mig 2 MIG-bb"])
    probe = GpuProbe({**os.environ, **nvml.environ, "CUDA_VISIBLE_DEVICES": listed}, root)
    assert [each.pci for each in read(probe)] == [PLACES[index] for index in found]
    probe.close()


@pytest.mark.parametrize("facts", [{"memory": 3}, {"handle": 4}, {"handle": 17}])
def test_what_a_gpu_does_not_tell_is_no_fault(
    probe: GpuProbe, nvml: FakeNvml, facts: dict[str, int]
) -> None:
    """Memory that is the processor's own is not told of; schedulers deny GPUs (4, 17)."""
    nvml.tell({1: facts})
    assert [*faults(read(probe), ())] == []


def test_hurry_ends_patient_waits_and_not_the_process(nvml: FakeNvml, root: Path) -> None:
    nvml.tell({}, ["hang"])
    probe = GpuProbe({**os.environ, **nvml.environ}, root)
    waiting = threading.Thread(target=probe.read, args=(60,))
    waiting.start()
    assert soon(lambda: probe._is_asked)
    probe.hurry()
    waiting.join(20)
    assert not waiting.is_alive()
    assert (probe.read(60), probe.failure, probe.knows) == (None, "", True)
    probe.close()
