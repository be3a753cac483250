"""What the doctor hears of GPUs from NVML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support import machines
from support.nvml import FakeNvml

from torshrun.ctl.doctor.accelerators import Accelerators, Card, check, gather

GIB = 1 << 30


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(tmp_path / "nvml")
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    return made


def gathered(tmp_path: Path, seconds: float = 20) -> Accelerators:
    return gather({}, seconds, machines.four_gpus(tmp_path / "root"))


def severities(facts: Accelerators) -> Sequence[str]:
    return [each.severity for each in check(facts)]


def test_cards_are_described(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.tell({1: {"used": 2 * GIB}, 2: {"ecc": 3}, 3: {"handle": 4}})  # the last is denied
    found = gathered(tmp_path)
    assert (found.source, found.failure) == ("NVML", "")
    assert found.cards == (
        Card("NVIDIA GPU 0", 80 * GIB, GIB),
        Card("NVIDIA GPU 1", 80 * GIB, 2 * GIB),
        Card("NVIDIA GPU 2", 80 * GIB, GIB, 3),
    )
    assert severities(found) == ["ok", "ok", "note", "problem"]


@pytest.mark.parametrize(
    ("gpus", "lines", "said"),
    [
        ({1: {"error": 15}}, [], "GPU 1: GPU is lost"),
        ({}, ["init 18"], "Driver/library version mismatch"),
        ({}, ["crash"], "SIGABRT"),
        ({}, ["hang"], "not done after 2 s"),
    ],
)
def test_a_driver_that_does_not_work_is_a_problem(
    nvml: FakeNvml, tmp_path: Path, gpus: dict[int, dict[str, int]], lines: list[str], said: str
) -> None:
    nvml.tell(gpus, lines)
    found = gathered(tmp_path, 2 if lines == ["hang"] else 20)
    assert said in found.failure
    assert "problem" in severities(found)


def test_without_a_driver_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    found = gathered(tmp_path)
    assert (found.source, found.cards, found.failure) == ("", (), "")
    assert severities(found) == ["ok", "note"]
