"""The metrics of a process without torshrun, served to Prometheus by a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.metrics import Metrics

HOST = "127.0.0.1"
_NAMED = {
    "system/cpu_seconds": ("worker_cpu_seconds_total", "Processor time of the process."),
    "system/rss": ("worker_resident_memory_bytes", "Memory that the process has resident."),
    "system/gpu_memory": ("worker_gpu_memory_bytes", "Memory that torch has in use on the GPU."),
    "training/step": ("worker_step", "Last step that the worker marked."),
    "training/total": ("worker_steps", "Steps that there will be."),
    "training/steps_per_second": ("worker_steps_per_second", "Steps a second."),
    "training/samples_per_second": ("worker_samples_per_second", "Samples a second."),
}
_OF_OPERATIONS = {
    "calls": ("worker_operations_total", "Operations that the worker has carried out."),
    "bytes": ("worker_operation_bytes_total", "Bytes of the worker's arrays in them."),
    "seconds": ("worker_operation_seconds_total", "Time that the worker has spent in them."),
    "waited": (
        "worker_operation_wait_seconds_total",
        "Time of this until all ranks had entered, as far as it is known.",
    ),
}


class Serving:
    """The thread that serves the metrics. Its creator stops it."""

    def __init__(self, metrics: Metrics, rank: int, port: int) -> None:
        """Begin to serve the metrics. Raises ConfigError if the port is not available."""
        registry = CollectorRegistry()
        registry.register(_Numbers(metrics, rank))
        try:
            started = start_http_server(port, HOST, registry)
        except OSError as error:
            raise ConfigError(
                f"rank {rank} cannot serve its metrics on port {port}, which is prometheus_port + "
                f"its local rank: {error.strerror}. Give prometheus_port another value"
            ) from error
        self._server: WSGIServer | None = started[0] if started else None
        self.url = f"http://{HOST}:{port}/metrics"

    def stop(self) -> None:
        """End the thread."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Numbers(Collector):
    def __init__(self, metrics: Metrics, rank: int) -> None:
        self._metrics, self._rank = metrics, str(rank)

    def collect(self) -> Iterator[Metric]:
        numbers = self._metrics.numbers()
        for name, (series, text) in _NAMED.items():
            if name in numbers:
                yield self._metric(series, text, {(): numbers[name]})
        for last, (series, text) in _OF_OPERATIONS.items():
            told = {
                (name.split("/")[1],): value
                for name, value in numbers.items()
                if name.startswith("communication/") and name.endswith(f"/{last}")
            }
            yield self._metric(series, text, told, "operation")
        scalars = {
            (name.removeprefix("training/scalar/"),): value
            for name, value in numbers.items()
            if name.startswith("training/scalar/")
        }
        text = "The last value of each scalar that the worker noted."
        yield self._metric("worker_scalar", text, scalars, "name")

    def _metric(self, series: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
        family = CounterMetricFamily if series.endswith("_total") else GaugeMetricFamily
        metric = family(f"torsh_{series.removesuffix('_total')}", text, labels=("rank", *labels))
        for of, value in values.items():
            spelt = [each.encode("utf-8", "backslashreplace").decode() for each in of]
            metric.add_metric([self._rank, *spelt], value)
        return metric
