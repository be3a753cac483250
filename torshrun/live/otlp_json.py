"""Encodes metrics and events for OpenTelemetry's protocol, in its JSON. Pure.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: names in lowerCamelCase, numbers
of 64 bits as text, enumerations as numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from torsh_runtime.events import Event

_CUMULATIVE = 2
_INFO = 9
_UNITS = {"seconds": "s", "bytes": "By"}
_ENVELOPE = ("v", "event", "time")
Json = dict[str, Any]
Since = Callable[[str], int]
"""A function that returns since when a metric has been counted, in nanoseconds since 1970."""


def metrics_request(
    families: Iterable[Metric], resource: Mapping[str, str], now: int, since: Since
) -> Json:
    """Return an ExportMetricsServiceRequest. `now` is in nanoseconds since 1970."""
    metrics = [_metric(family, now, since) for family in families if family.samples]
    return {
        "resourceMetrics": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeMetrics": [{"scope": _scope(), "metrics": [*filter(None, metrics)]}],
            }
        ]
    }


def logs_request(events: Iterable[Event], resource: Mapping[str, str]) -> Json:
    """Return an ExportLogsServiceRequest: a record for each event."""
    return {
        "resourceLogs": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeLogs": [{"scope": _scope(), "logRecords": [*map(_record, events)]}],
            }
        ]
    }


def _scope() -> Json:
    return {"name": "torshrun", "version": version("torshrun")}


# ---- metrics


def _metric(family: Metric, now: int, since: Since) -> Json | None:
    """Return a metric; None if it is of a kind that is not used here."""
    name = f"{family.name}_total" if family.type == "counter" else family.name
    unit = next((unit for word, unit in _UNITS.items() if word in family.name.split("_")), "")
    found: Json = {"name": name, "description": family.documentation, "unit": unit}
    counted = {"startTimeUnixNano": str(since(name)), "timeUnixNano": str(now)}
    if family.type == "gauge":
        points = [_number(sample, {"timeUnixNano": str(now)}) for sample in family.samples]
        return {**found, "gauge": {"dataPoints": points}}
    if family.type == "counter":
        points = [_number(each, counted) for each in family.samples if each.name == name]
        kind = {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
        return {**found, "sum": {"dataPoints": points, **kind}}
    if family.type == "histogram":
        points = _histograms(family.samples, counted)
        return {**found, "histogram": {"dataPoints": points, "aggregationTemporality": _CUMULATIVE}}
    return None


def _number(sample: Sample, times: Json) -> Json:
    return {"attributes": _attributes(sample.labels), **times, "asDouble": _double(sample.value)}


def _histograms(samples: Sequence[Sample], times: Json) -> list[Json]:
    found: dict[tuple[tuple[str, str], ...], Json] = {}
    for sample in samples:
        labels = {name: text for name, text in sample.labels.items() if name != "le"}
        empty: Json = {"attributes": _attributes(labels), **times, "bounds": [], "sums": []}
        point = found.setdefault(tuple(sorted(labels.items())), empty)
        if sample.name.endswith("_bucket"):
            point["bounds"].append(float(sample.labels["le"]))
            point["sums"].append(int(sample.value))
        elif sample.name.endswith("_sum"):
            point["sum"] = _double(sample.value)
    return [*map(_with_buckets, found.values())]


def _with_buckets(point: Json) -> Json:
    """Convert buckets: Prometheus counts up to each bound, OpenTelemetry between two."""
    bounds, sums = point.pop("bounds"), point.pop("sums")
    between = [after - before for before, after in zip([0, *sums], sums, strict=False)]
    return {
        **point,
        "count": str(sums[-1]),
        "bucketCounts": [str(count) for count in between],
        "explicitBounds": bounds[:-1],  # the last one is infinite
    }


# ---- events


def _record(event: Event) -> Json:
    document = json.loads(event.to_json())
    facts = {name: value for name, value in document.items() if name not in _ENVELOPE}
    attributes = [{"key": name, "value": _value(value)} for name, value in facts.items()]
    return {
        "timeUnixNano": str(int(event.time * 1e9)),
        "severityNumber": _INFO,
        "severityText": "INFO",
        "body": {"stringValue": event.name},
        "attributes": [{"key": "event.name", "value": {"stringValue": event.name}}, *attributes],
    }


def _value(value: Any) -> Json:
    """Return the form of a JSON value; null is a value without any."""
    if isinstance(value, str):
        return {"stringValue": _text(value)}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)} if abs(value) < 2**63 else {"stringValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": _double(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [*map(_value, value)]}}
    if isinstance(value, dict):
        pairs = [{"key": _text(key), "value": _value(each)} for key, each in value.items()]
        return {"kvlistValue": {"values": pairs}}
    return {}


# ---- what both are made of


def _attributes(labels: Mapping[str, str]) -> list[Json]:
    return [{"key": key, "value": {"stringValue": _text(text)}} for key, text in labels.items()]


def _text(text: str) -> str:
    """Return the text with what is no Unicode spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
