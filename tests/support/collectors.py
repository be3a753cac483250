"""An OpenTelemetry collector of a test's own: keeps what is sent to it."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
_NANOSECONDS = re.compile(r"1[0-9]{18}")


class CollectorServer:
    """Serves on a free port of this host; ends by with."""

    def __init__(self) -> None:
        self.answers: dict[str, int] = {}
        """By path the status that is answered; else 200."""
        self.requests: list[tuple[str, dict[str, str], Json]] = []
        """Path, headers by their names in small letters, and body of each."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(
                    self.rfile.read(int(self.headers["Content-Length"])), parse_constant=_refuse
                )
                headers = {name.lower(): text for name, text in self.headers.items()}
                server.requests.append((self.path, headers, body))
                self.send_response(server.answers.get(self.path, 200))
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> CollectorServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def metrics(self) -> list[dict[str, Json]]:
        """Of each export the metrics by name, after a look at all that it holds."""
        return [metrics_of(body) for path, _, body in self.requests if path == "/v1/metrics"]

    def events(self) -> list[tuple[str, Json]]:
        """Names and attributes."""
        bodies = [body for path, _, body in self.requests if path == "/v1/logs"]
        return [each for body in bodies for each in events_of(body)]


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def metrics_of(body: Json) -> dict[str, Json]:
    (part,) = body["resourceMetrics"]
    assert attributes_of(part["resource"])["service.name"] == "torshrun"
    (scope,) = part["scopeMetrics"]
    assert scope["scope"]["name"] == "torshrun"
    found = {metric["name"]: metric for metric in scope["metrics"]}
    assert len(found) == len(scope["metrics"])
    for metric in found.values():
        _check_metric(metric)
    return found


def _check_metric(metric: Json) -> None:
    (kind,) = metric.keys() & {"gauge", "sum", "histogram"}
    assert metric.keys() == {"name", "description", "unit", kind}
    assert (kind == "sum") == metric["name"].endswith("_total")
    if kind != "gauge":
        assert metric[kind]["aggregationTemporality"] == 2
    assert metric[kind]["dataPoints"]
    for point in metric[kind]["dataPoints"]:
        attributes_of(point)
        assert _NANOSECONDS.fullmatch(point["timeUnixNano"])
        if kind != "gauge":
            assert int(point["startTimeUnixNano"]) <= int(point["timeUnixNano"])
        if kind == "histogram":
            counts = [*map(int, point["bucketCounts"])]
            assert len(counts) == len(point["explicitBounds"]) + 1
            assert (sum(counts), min(counts) >= 0) == (int(point["count"]), True)
        else:
            assert isinstance(point["asDouble"], float) or point["asDouble"] == "NaN"


def attributes_of(holder: Json) -> Json:
    found = {each["key"]: value_of(each["value"]) for each in holder["attributes"]}
    assert len(found) == len(holder["attributes"])
    return found


def value_of(value: Json) -> Any:
    if not value:
        return None
    ((kind, inner),) = value.items()
    if kind == "arrayValue":
        return [*map(value_of, inner["values"])]
    if kind == "intValue":
        return int(inner)
    assert kind in ("stringValue", "boolValue", "doubleValue")
    return inner


def events_of(body: Json) -> list[tuple[str, Json]]:
    (part,) = body["resourceLogs"]
    (scope,) = part["scopeLogs"]
    for record in scope["logRecords"]:
        assert _NANOSECONDS.fullmatch(record["timeUnixNano"])
        assert record["severityNumber"] == 9
    return [
        (record["body"]["stringValue"], attributes_of(record)) for record in scope["logRecords"]
    ]
