"""A snapshot in Prometheus's words. Loads prometheus_client and psutil: only when somebody asks."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import NamedTuple, get_args

import psutil
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from torshrun.live.snapshot import JobState, Snapshot

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values, each with its labels' values."""


class Series(NamedTuple):
    """What samples of one name have in common."""

    type: str
    """"counter" or "gauge"."""
    labels: tuple[str, ...]
    text: str
    """What it measures."""


METRICS: Mapping[str, Series] = {
    "torsh_build_info": Series("gauge", ("version", "python"), "Always 1; what is running."),
    "torsh_job_info": Series("gauge", ("run_id", "role", "node_rank"), "Always 1; which job."),
    "torsh_job_start_time_seconds": Series("gauge", (), "When the job began, since 1970."),
    "torsh_job_state": Series("gauge", ("state",), "1 for the state that the job is in, else 0."),
    "torsh_nodes": Series("gauge", (), "Nodes of this round."),
    "torsh_round": Series("gauge", (), "Number of the round, counted from 0."),
    "torsh_workers": Series("gauge", (), "Workers that this node should run."),
    "torsh_workers_alive": Series("gauge", (), "Workers that it runs."),
    "torsh_restarts_total": Series("counter", (), "How often workers were restarted."),
    "torsh_restarts_allowed": Series("gauge", (), "How often they may be, --max-restarts."),
    "torsh_worker_failures_total": Series(
        "counter", ("reason",), "Rounds that failed, by kind of their root cause."
    ),
    "torsh_output_bytes_total": Series("counter", (), "Output that workers have written."),
    "torsh_heartbeat_age_seconds": Series("gauge", (), "Time since the agent's loop last beat."),
    "torsh_worker_up": Series("gauge", ("rank",), "1 while the worker runs, else 0."),
    "torsh_worker_step": Series("gauge", ("rank",), "Last step that the worker reported."),
    "torsh_worker_resident_memory_bytes": Series(
        "gauge", ("rank",), "Memory that the worker's process has resident."
    ),
    "torsh_worker_cpu_seconds_total": Series(
        "counter",
        ("rank",),
        "CPU time of the worker's process and of those children that it has waited for.",
    ),
}
"""All metrics of torshrun's own."""


class Exposition:
    """Renders what a snapshot says; may be used by several threads at once."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_JobCollector(snapshot))
        ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type, in the format that an Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _JobCollector(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._epoch = time.time() - time.monotonic()  # once: the start time must not waver

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        values = {**_of_job(snapshot, self._epoch), **_of_workers(snapshot)}
        for name, series in METRICS.items():
            yield _metric(name, series, values[name])


def _metric(name: str, series: Series, samples: Samples) -> Metric:
    family = CounterMetricFamily if series.type == "counter" else GaugeMetricFamily
    metric = family(name.removesuffix("_total"), series.text, labels=series.labels)
    for labels, value in samples:
        metric.add_metric([_encodable(label) for label in labels], value)
    return metric


def _encodable(label: str) -> str:
    """`label`, with what is no Unicode (a name from a command line may be anything) spelt out."""
    return label.encode("utf-8", "backslashreplace").decode()


def _of_job(now: Snapshot, epoch: float) -> dict[str, Samples]:
    info = (now.run_id, now.role, str(now.node_rank))
    states = get_args(JobState)
    return {
        "torsh_build_info": [((version("torshrun"), platform.python_version()), 1)],
        "torsh_job_info": [(info, 1)],
        "torsh_job_start_time_seconds": [((), epoch + now.started)],
        "torsh_job_state": [((state,), state == now.state) for state in states],
        "torsh_nodes": [((), now.num_nodes)],
        "torsh_round": [((), now.round)],
        "torsh_workers": [((), now.workers)],
        "torsh_workers_alive": [((), now.alive)],
        "torsh_restarts_total": [((), now.restarts)],
        "torsh_restarts_allowed": [((), now.max_restarts)],
        "torsh_worker_failures_total": [((why,), n) for why, n in sorted(now.failures.items())],
        "torsh_output_bytes_total": [((), now.output_bytes)],
        "torsh_heartbeat_age_seconds": [((), max(0.0, time.monotonic() - now.heartbeat))],
    }


def _of_workers(now: Snapshot) -> dict[str, Samples]:
    ranks = [(str(now.first_rank + local_rank),) for local_rank in range(now.workers)]
    steps = zip(ranks, now.steps, strict=False)
    used = {rank: _usage(pid) for rank, pid in zip(ranks, now.pids, strict=True) if pid > 0}
    known = [(rank, usage) for rank, usage in used.items() if usage is not None]
    return {
        "torsh_worker_up": [(rank, pid > 0) for rank, pid in zip(ranks, now.pids, strict=True)],
        "torsh_worker_step": [(rank, step) for rank, step in steps if step is not None],
        "torsh_worker_resident_memory_bytes": [(rank, rss) for rank, (rss, _) in known],
        "torsh_worker_cpu_seconds_total": [(rank, seconds) for rank, (_, seconds) in known],
    }


def _usage(pid: int) -> tuple[int, float] | None:
    """Resident bytes and CPU seconds of a process; None if it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return process.memory_info().rss, sum(process.cpu_times()[:4])
    except psutil.Error:
        return None
