"""What a script asks its agent for, and how it is called back."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import soon

from torsh_runtime.errors import ConfigError
from torsh_runtime.events import Event, faults
from torsh_runtime.monitoring import bottlenecks, recording
from torsh_runtime.monitoring.bottleneck_config import (
    Bottleneck,
    BottleneckDetectionConfig,
    BottleneckThresholds,
)
from torsh_runtime.monitoring.bottlenecks import Findings
from torsh_runtime.monitoring.findings import Finding
from torsh_runtime.monitoring.marks import own_marks
from torsh_runtime.monitoring.wishes import PREFIX, wish_in


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("detection_interval_ms", 0),
        ("detection_interval_ms", math.nan),
        ("detection_interval_ms", "soon"),
        ("detection_interval_ms", True),
        ("thresholds", 0.9),
        ("callback", 7),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        BottleneckDetectionConfig(**{name: value})


@pytest.mark.parametrize("value", [0, 1.5, -1, math.nan, "half", True])
def test_thresholds_are_parts(value: Any) -> None:
    with pytest.raises(ConfigError, match="cpu_utilization"):
        BottleneckThresholds(cpu_utilization=value)


def test_an_agent_reads_what_it_is_asked_for() -> None:
    config = BottleneckDetectionConfig(
        detection_interval_ms=250,
        thresholds=BottleneckThresholds(0.5, 0.6, 0.7, 0.8),
        enable_auto_scaling=True,
        enable_notifications=False,
    )
    name = config.wish.named()
    assert len(name) <= 64
    assert wish_in(["data", name, "forward"]) == config.wish
    assert wish_in([BottleneckDetectionConfig().wish.named(), name]) == config.wish


@pytest.mark.parametrize(
    "name", ["data", PREFIX, f"{PREFIX}1 2 3", f"{PREFIX}x 1 1 1 1 1", f"{PREFIX}1 1 1 1 1 ²"]
)
def test_what_is_no_wish_is_none(name: str) -> None:
    assert wish_in([name]) is None


def test_a_wish_that_is_nonsense_does_no_harm() -> None:
    found = wish_in([f"{PREFIX}0 {10**40} 0 0 99999 255"])
    assert found is not None
    assert found.interval >= 0.05
    assert all(0 <= limit <= 1 for limit in found.limits.values())


def told(number: int) -> bytes:
    return json.dumps({"event": "straggler_gone", "facts": {"text": str(number)}}).encode() + b"\n"


def test_each_finding_is_called_back_with_once_when_its_line_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bottlenecks, "_OFTEN", 0.0)
    file, found = tmp_path / "found", list[Bottleneck]()

    def call_back(each: Bottleneck) -> None:
        found.append(each)
        raise ValueError("of the callback")

    findings = Findings(str(file), call_back)
    findings.step(0)
    file.write_bytes(told(0) + told(1)[:10])
    findings.begin("data", 0)
    assert [each.text for each in found] == ["0"]
    with file.open("ab") as more:
        more.write(told(1)[10:] + b"nonsense\n{}\n[]\n")
    findings.step(1)
    findings.step(2)
    assert [each.text for each in found] == ["0", "1"]
    assert "the callback of BottleneckDetectionConfig has failed" in caplog.text


@pytest.mark.parametrize("kind", ["straggler", "link", "resource"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_events_are_as_documented(kind: Any, is_gone: bool) -> None:
    cause = "cpu" if kind == "resource" else "link"
    name, facts = Finding(kind, is_gone, 1, (2,), 7, 1.5, 1.25, cause).event("Go.")
    event = Event(name=name, time=0.0, run_id="j", node_rank=0, round=0, facts=facts)
    assert faults(event) == ()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that nobody has launched."""
    for name in ("RANK", "WORLD_SIZE", "TORSH_STATUS_FILE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    recording.own_recording.cache_clear()
    own_marks.cache_clear()
    yield
    recording.own_recording.cache_clear()
    own_marks.cache_clear()


@pytest.mark.usefixtures("alone")
def test_without_an_agent_a_thread_looks(caplog: pytest.LogCaptureFixture) -> None:
    found = list[Bottleneck]()
    config = BottleneckDetectionConfig(
        detection_interval_ms=50,
        thresholds=BottleneckThresholds(1, 1e-6, 1, 1),  # some memory is in use
        callback=found.append,
    )
    with caplog.at_level(logging.WARNING):
        stop = bottlenecks.begin(config)
        own_marks().step(0, {})
        own_marks().step(1, {})
        assert soon(lambda: bool(found))
        stop()
    assert (found[0].event, found[0].facts["resource"]) == ("resource_exhausted", "memory")
    assert found[0].text in caplog.text


@pytest.mark.usefixtures("alone")
def test_without_a_recorder_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSH_RECORDER", "off")
    with pytest.raises(ConfigError, match="TORSH_RECORDER"):
        bottlenecks.begin(BottleneckDetectionConfig())
