"""start() does what configurations say, until it is stopped."""

import json
import logging
import mmap
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torsh_runtime as tr
from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring import DebugConfig, MetricsConfig, section, start, step
from torsh_runtime.monitoring.notes import Note
from torsh_runtime.monitoring.recording import own_recording

Noted = Callable[[], list[Note]]


def resident(size: int) -> mmap.mmap:
    """Fresh memory that is resident: an allocator may have kept what others have freed."""
    memory = mmap.mmap(-1, size)
    memory.write(b"1" * size)
    return memory


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (DebugConfig, "log_communication", 1),
        (DebugConfig, "save_timeline", "yes"),
        (DebugConfig, "timeline_file", None),
        (DebugConfig, "timeline_file", ""),
        (MetricsConfig, "collection_interval_ms", 0),
        (MetricsConfig, "collection_interval_ms", 1.5),
        (MetricsConfig, "prometheus_port", 0),
        (MetricsConfig, "prometheus_port", 65536),
        (MetricsConfig, "export_prometheus", 9090),
    ],
)
def test_wrong_values_are_refused_by_name(kind: Any, field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        kind(**{field: value})


def test_a_kind_is_in_force_once(noted: Noted, capsys: pytest.CaptureFixture[str]) -> None:
    with start(DebugConfig()), start(MetricsConfig()) as second:
        with pytest.raises(ConfigError, match="a MetricsConfig is in force already"):
            start(MetricsConfig(collection_interval_ms=5))
        second.stop()
        second.stop()
        start(MetricsConfig()).stop()
    with pytest.raises(ConfigError, match="already"):
        start(DebugConfig(), DebugConfig())
    with pytest.raises(ConfigError, match="start\\(\\) takes DebugConfig, MetricsConfig and"):
        start(DebugConfig(), "metrics")
    start(DebugConfig()).stop()  # nothing of what was refused is in force
    with pytest.raises(ConfigError):
        start(DebugConfig(enable_profiling=True), "metrics")
    assert capsys.readouterr().err == ""


def test_rank_0_sums_up_how_long_sections_took(
    noted: Noted, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(DebugConfig(enable_profiling=True)):
        for number in range(4):
            step(number)
            with section("outer"), section("inner"), section("step"), section("a\x1b[2J\nb"):
                pass
    first, *lines = capsys.readouterr().err.splitlines()
    assert first.split() == ["section", "calls", "seconds", "mean", "ms", "longest", "ms", "share"]
    calls = {line.split()[0]: int(line.split()[1]) for line in lines}
    assert calls == {"outer": 4, "inner": 4, "step": 4, "a\\x1b[2J\\nb": 4, "(step)": 3}
    with section("later"):
        pass
    assert capsys.readouterr().err == ""


def test_sections_that_an_exception_left_open_are_closed_with_the_outer_one(
    noted: Noted, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(DebugConfig(enable_profiling=True)), section("outer"):
        section("broken").__enter__()
    assert "broken" not in capsys.readouterr().err


def test_the_timeline_is_written_at_the_end(noted: Noted, tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    with start(DebugConfig(save_timeline=True, timeline_file=str(file))):
        step(1, loss=0.5)
        with section("data"):
            pass
    events = json.loads(file.read_text())["traceEvents"]
    assert "data" in [each["name"] for each in events]
    assert [each.name for each in tmp_path.iterdir()] == ["timeline.json"]


@pytest.mark.usefixtures("noted")
def test_a_timeline_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where = tmp_path / "nowhere" / "timeline.json"
    with start(DebugConfig(save_timeline=True, timeline_file=str(where))):
        pass
    assert "cannot be written: No such file" in caplog.text


EXITS = """
import os, sys, torsh_runtime as tr
tr.monitoring.start(tr.monitoring.DebugConfig(save_timeline=True, enable_profiling=True))
with tr.monitoring.section("data"):
    pass
if not os.fork():
    sys.exit()  # no end of what its parent has started
os.wait()
assert not os.path.exists("torsh_timeline.3.json")
"""


def test_the_end_of_the_process_is_an_end(tmp_path: Path) -> None:
    environ = {**os.environ, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}
    done = subprocess.run(
        [sys.executable, "-c", EXITS],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [each.name for each in tmp_path.iterdir()] == ["torsh_timeline.3.json"]
    assert done.stderr == ""  # rank 0 sums up


def test_calls_are_logged_with_their_place(noted: Noted, caplog: pytest.LogCaptureFixture) -> None:
    numpy = pytest.importorskip("numpy")
    tr.init_process_group(rank=0, world_size=1)
    try:
        group = tr.new_group([0])
        logger = logging.getLogger("torsh_runtime.communication")
        with start(DebugConfig(log_communication=True)):
            tr.all_reduce(numpy.ones(3, numpy.float32))
            group.broadcast(numpy.ones((2, 2)), 0)
            with tr.coalesce():
                tr.all_reduce(numpy.ones(5))
        level = logger.level
        tr.barrier()
    finally:
        tr.destroy_process_group()
    first, second, third = (each.getMessage() for each in caplog.records)
    assert first.startswith(f"all_reduce(float32[3], SUM) of 1 ranks at {__file__}:")
    assert first.endswith(f" in {test_calls_are_logged_with_their_place.__qualname__}")
    assert second.startswith(f"broadcast(float64[2, 2]) of 1 ranks at {__file__}:")
    assert third.startswith(f"all_reduce(float64[5], SUM) of 1 ranks at {__file__}:")
    assert level == logging.NOTSET


def test_numbers_are_those_that_are_wanted(noted: Noted) -> None:
    config = MetricsConfig(collection_interval_ms=1, enable_system_metrics=False)
    with start(config) as monitoring:
        step(5, total=9, samples=2, loss=0.5, **{"val/acc": 0.25})
        numbers = monitoring.metrics()
        assert numbers["training/step"] == 5
        assert numbers["training/total"] == 9
        assert numbers["training/scalar/loss"] == 0.5
        assert numbers["training/scalar/val/acc"] == 0.25
        assert not any(name.startswith("system/") for name in numbers)
    with start(MetricsConfig(enable_training_metrics=False)) as monitoring:
        kinds = {name.split("/")[0] for name in monitoring.metrics()}
        assert kinds == {"system"}  # nothing was communicated
    with start(DebugConfig()) as monitoring, pytest.raises(ConfigError, match="no MetricsConfig"):
        monitoring.metrics()


def test_a_local_rank_without_a_port_is_told(noted: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="leaves local rank 1 no port: 65535 is the last"):
        start(MetricsConfig(export_prometheus=True, prometheus_port=65535))


def test_numbers_of_the_system_are_noted_at_steps(
    noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("torsh_runtime.monitoring.metrics.time.monotonic", lambda: now)
    with start(MetricsConfig(collection_interval_ms=1000)):
        for number, now in enumerate((100.5, 101.0, 101.5, 102.5)):  # noqa: B007
            step(number)
    names = [each.name or each.kind for each in noted()]
    system = ["system/cpu", "system/rss"]
    assert names == ["step", "step", *system, "step", "step", *system]


def test_each_rank_has_a_timeline_of_its_own(noted: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with start(DebugConfig()) as monitoring:
        names = [monitoring.timeline_path(each).name for each in ("t.json", "t.json.gz", "t")]
    assert names == ["t.1.json", "t.1.json.gz", "t.1"]


def test_prometheus_reads_them(noted: Noted, port: int) -> None:
    config = MetricsConfig(collection_interval_ms=1, export_prometheus=True, prometheus_port=port)
    with start(config) as monitoring:
        step(5, loss=0.5, **{'odd "name"\n': 1})
        with urllib.request.urlopen(monitoring.url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        assert 'torsh_worker_step{rank="0"} 5.0' in lines
        assert 'torsh_worker_scalar{name="loss",rank="0"} 0.5' in lines
        assert any(line.startswith("torsh_worker_cpu_seconds_total{") for line in lines)
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(ConfigError, match=f"rank 0 cannot serve .* port {port}, .*in use"):
            start(config)
        start(MetricsConfig()).stop()


def test_under_torshrun_its_agent_serves(noted: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "1", "TORSH_STATUS_FILE": "/nowhere"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="start it with --metrics-port PORT"):
        start(MetricsConfig(export_prometheus=True))
    monkeypatch.setenv("TORSH_METRICS_AT", "http://127.0.0.1:7/metrics")
    with start(MetricsConfig(export_prometheus=True)) as monitoring:
        assert monitoring.url == "http://127.0.0.1:7/metrics"


def test_sections_note_by_how_much_memory_grew(noted: Noted) -> None:
    with start(DebugConfig(memory_profiling=True)):
        step(1)
        with section("outer"):
            with section("grows"):
                kept = resident(32 << 20)
            with section("stays"):
                pass
    values = {each.name: each.value for each in noted() if each.kind == "scalar"}
    assert values["memory/grows"] > 28 << 20
    assert values["memory/outer"] > 28 << 20
    assert values["memory/stays"] < 8 << 20
    assert values["memory/rss"] > 1 << 20
    assert len(kept) == 32 << 20


def test_memory_of_this_process(noted: Noted) -> None:
    before = tr.monitoring.memory()
    kept, allocated = resident(32 << 20), bytearray(32 << 20)
    use = tr.monitoring.memory()
    assert use.rss - before.rss > 28 << 20
    assert use.growth - before.growth > 28 << 20
    assert use.peak >= use.rss - (8 << 20)
    assert use.pss is None or 0 < use.pss <= use.rss + (8 << 20)
    if "malloc" in use.allocators:  # glibc's
        assert use.allocators["malloc"] - before.allocators["malloc"] > 28 << 20
    assert use.shared >= 0
    assert len(kept) == len(allocated)


def test_without_a_recorder_all_is_started(
    noted: Noted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORSH_RECORDER", "off")
    monkeypatch.chdir(tmp_path)
    everything = DebugConfig(enable_profiling=True, save_timeline=True, memory_profiling=True)
    with start(everything, MetricsConfig()) as monitoring:
        step(1)
        with section("data"):
            pass
        assert {name.split("/")[0] for name in monitoring.metrics()} == {"system"}
    assert "no timeline is written: TORSH_RECORDER is off" in caplog.text
    assert own_recording() is None
