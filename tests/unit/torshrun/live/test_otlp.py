"""What is sent to OpenTelemetry collectors, and what collectors that fail cost."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from support.collectors import CollectorServer, attributes_of, events_of, metrics_of
from support.processes import soon

from torsh_runtime.events import Event
from torshrun.config.job import Collector
from torshrun.live import otlp, sender
from torshrun.live.otlp import Exporter
from torshrun.live.otlp_json import logs_request, metrics_request
from torshrun.live.prometheus import Exposition
from torshrun.live.snapshot import Counted, Noted, Snapshot

NOW = 1_700_000_000_000_000_000


def a_snapshot(**facts: Any) -> Snapshot:
    now = time.monotonic()
    one = Counted(7, 64.0, {"loss": 0.5, "bad": float("nan")}, {"data": 1.5})
    values: dict[str, Any] = {
        "run_id": "digits",
        "role": "default",
        "started": now - 60,
        "heartbeat": now,
        "state": "running",
        "pids": (os.getpid(), 0),
        "noted": Noted([one], {"scalar": 0}, now - 30),
    }
    return Snapshot(**values | facts)


def an_event(**facts: object) -> Event:
    return Event(name="x", time=1.7e9, run_id="digits", node_rank=0, round=1, facts=facts)


@pytest.fixture
def collector() -> Iterator[CollectorServer]:
    with CollectorServer() as server:
        yield server


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(sender, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(sender, "CLOSE_SECONDS", 20.0)  # a slow machine is no error


class Sending:
    """An exporter, and what it complains of."""

    def __init__(self, url: str, **headers: str) -> None:
        self.said: list[str] = []
        to = Collector(url=url, headers=tuple(headers.items()))
        self.exporter = Exporter(to, a_snapshot, self.said.append)
        self.exporter.start()


def test_metrics_are_those_of_prometheus(collector: CollectorServer) -> None:
    sending = Sending(collector.url, Authorization="Bearer abc")
    assert soon(lambda: len(collector.requests) > 2)
    sending.exporter.close()
    path, headers, _ = collector.requests[0]
    assert (path, headers["authorization"]) == ("/v1/metrics", "Bearer abc")
    assert headers["content-type"] == "application/json"
    found = collector.metrics()[-1]
    for family in Exposition(a_snapshot).families():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert (name in found) == bool(family.samples)
    (steps,) = found["torsh_worker_steps_total"]["sum"]["dataPoints"]
    assert (attributes_of(steps), steps["asDouble"]) == ({"rank": "0"}, 7.0)
    ages = [
        (int(steps["timeUnixNano"]) - int(point["startTimeUnixNano"])) / 1e9
        for point in (steps, found["torsh_restarts_total"]["sum"]["dataPoints"][0])
    ]
    assert ages == [pytest.approx(30, abs=20), pytest.approx(60, abs=20)]
    assert found["torsh_worker_section_seconds_total"]["unit"] == "s"
    assert found["torsh_worker_resident_memory_bytes"]["unit"] == "By"
    scalars = found["torsh_worker_scalar"]["gauge"]["dataPoints"]
    assert [each["asDouble"] for each in scalars] == ["NaN", 0.5]
    assert sending.said == []


def test_the_last_numbers_and_events_are_sent_at_the_end(
    collector: CollectorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "FIRST_SECONDS", 3600.0)
    sending = Sending(collector.url)
    sending.exporter.record(an_event(text="a\udcff", number=3, no=None, ranks=[1, 2], yes=True))
    sending.exporter.close()
    assert len(collector.metrics()) == 1
    ((name, attributes),) = collector.events()
    assert (name, attributes["event.name"], attributes["text"]) == ("x", "x", "a\\udcff")
    assert (attributes["number"], attributes["no"], attributes["yes"]) == (3, None, True)
    assert (attributes["ranks"], attributes["run_id"], attributes["round"]) == ([1, 2], "digits", 1)


def test_events_wait_while_a_collector_fails_and_are_sent_once(collector: CollectorServer) -> None:
    collector.answers["/v1/metrics"] = 503
    sending = Sending(collector.url)
    sending.exporter.record(an_event())
    assert soon(lambda: len(collector.requests) > 2)
    assert (len(sending.said), "Service Unavailable" in sending.said[0]) == (1, True)
    collector.answers.clear()
    assert soon(lambda: bool(collector.events()))
    sending.exporter.close()
    assert (len(collector.events()), len(sending.said)) == (1, 1)


def test_a_collector_that_takes_no_events(collector: CollectorServer) -> None:
    collector.answers["/v1/logs"] = 404
    sending = Sending(collector.url)
    for _ in range(2):
        sending.exporter.record(an_event())
        assert soon(lambda: bool(sending.said))
    sending.exporter.close()
    assert len(collector.events()) <= 2
    assert sending.said == [f"{collector.url} takes metrics, but no events (HTTP 404)"]


def test_what_is_redirected_is_not_followed(collector: CollectorServer) -> None:
    collector.answers["/v1/metrics"] = 302
    sending = Sending(collector.url)
    assert soon(lambda: bool(sending.said))
    sending.exporter.close()
    assert {path for path, _, _ in collector.requests} == {"/v1/metrics"}


def test_nobody_there_costs_one_warning() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        sending = Sending(f"http://127.0.0.1:{taken.getsockname()[1]}")
        for _ in range(otlp.MOST_EVENTS + 5):
            sending.exporter.record(an_event())
        assert soon(lambda: bool(sending.said))
        sending.exporter.close()
    assert len(sending.said) == 1
    assert "Connection refused" in sending.said[0]
    assert len(sending.exporter._events) == otlp.MOST_EVENTS


def test_what_answers_otherwise_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        sending = Sending(f"http://127.0.0.1:{stranger.getsockname()[1]}")
        peer, _ = stranger.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(b"\0\x1b[2Jwho are you?\r\n" + b"x" * 1000)
        assert soon(lambda: bool(sending.said))
    sending.exporter.close()
    (line,) = sending.said
    assert line.isprintable()
    assert "who are you?" in line


def test_a_collector_that_never_answers_does_not_hold_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(sender, "CLOSE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sending = Sending(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert soon(lambda: bool(sending.said))
        began = time.monotonic()
        sending.exporter.close()
        assert time.monotonic() - began < 10
        assert soon(lambda: not sending.exporter._thread.is_alive())


def a_histogram() -> HistogramMetricFamily:
    family = HistogramMetricFamily("torsh_operation_duration_seconds", "x", labels=["operation"])
    family.add_metric(["send"], [("1e-06", 1.0), ("4e-06", 3.0), ("+Inf", 4.0)], 0.5)
    family.add_metric(["recv"], [("1e-06", 0.0), ("4e-06", 0.0), ("+Inf", 2.0)], 9.0)
    return family


def request_of(*families: Metric) -> dict[str, Any]:
    names = {"service.name": "torshrun"}
    return metrics_request(families, names, NOW, lambda name: NOW - len(name))


def test_buckets_count_what_is_between_their_bounds() -> None:
    (metric,) = metrics_of(request_of(a_histogram())).values()
    found = {
        attributes_of(point)["operation"]: (point["bucketCounts"], point["explicitBounds"])
        for point in metric["histogram"]["dataPoints"]
    }
    assert found == {
        "send": (["1", "2", "1"], [1e-6, 4e-6]),
        "recv": (["0", "0", "2"], [1e-6, 4e-6]),
    }
    assert [each["sum"] for each in metric["histogram"]["dataPoints"]] == [0.5, 9.0]


def test_it_is_what_the_protocol_says() -> None:
    """By OpenTelemetry's own description of it."""
    json_format = pytest.importorskip("google.protobuf.json_format")
    metrics = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    logs = pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
    body = request_of(*Exposition(a_snapshot).families(), a_histogram())
    parsed = json_format.ParseDict(body, metrics.ExportMetricsServiceRequest())
    assert len(parsed.resource_metrics[0].scope_metrics[0].metrics) == len(metrics_of(body))
    body = logs_request([an_event(text="a", no=None, ranks=[1])], {"service.name": "torshrun"})
    json_format.ParseDict(body, logs.ExportLogsServiceRequest())
    assert len(events_of(body)) == 1
