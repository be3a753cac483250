"""Exposes a snapshot to Prometheus. Loads prometheus_client, so it is imported only on demand."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from typing import Any, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from torsh_runtime.monitoring.layout import Tallied, durations_of, tallies_of
from torshrun.health.gpu_health import GpuReading
from torshrun.health.recordings import read_words
from torshrun.live.snapshot import JobState, Snapshot
from torshrun.procfs import read_stat
from torshrun.text import printable

_OF_OPERATIONS = {
    "operations": "Operations that the worker has carried out.",
    "operation_bytes": "Bytes of the worker's arrays in them.",
    "operation_seconds": "Time that the worker has spent in them.",
    "operation_wait_seconds": "Time of this until all ranks had entered, as far as it is known.",
}
Durations = Mapping[str, Sequence[tuple[float, int]]]
"""The durations of operations in the form of durations_of()."""
ReadGpus = Callable[[], Sequence[GpuReading]]
"""Reads the GPUs that workers may use; it may take seconds."""
_BOUNDS = [1e-6 * 4**power for power in range(14)]
"""Bounds of the buckets of operations' durations, in seconds: to 67 s."""
_ROUNDED = 1.05
"""The factor by which the recorder's classes of durations may exceed a bucket's bound, as where one
ends at 1.024 µs.
"""


class Exposition(Collector):
    """Renders what a snapshot says; may be used by several threads at once."""

    def __init__(self, snapshot: Callable[[], Snapshot], gpus: ReadGpus = lambda: ()) -> None:
        self._snapshot = snapshot
        self._gpus = gpus
        self._epoch = time.time() - time.monotonic()  # once: the start time must not waver
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its content type, in the format that an Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def families(self) -> list[Metric]:
        """Return all metrics that render() shows."""
        return [*self._registry.collect()]

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        yield from _of_job(now, self._epoch)
        yield from _of_workers(now)
        yield from _of_gpus(now, self._gpus())
        yield from _of_notes(now)
        recordings = read_words(now.status_file) if now.status_file else []
        tallies = [list(tallies_of(words)) for words in recordings]
        yield from _of_operations(now, tallies)
        yield _durations(tallies, map(durations_of, recordings))


def _of_job(now: Snapshot, epoch: float) -> Iterator[Metric]:
    build = (version("torshrun"), platform.python_version())
    yield _metric("build_info", "Always 1; what is running.", {build: 1}, "version", "python")
    info = (now.run_id, now.role, str(now.node_rank))
    yield _metric("job_info", "Always 1; which job.", {info: 1}, "run_id", "role", "node_rank")
    yield _metric("job_start_time_seconds", "When the job began, since 1970.", epoch + now.started)
    states = {state: state == now.state for state in get_args(JobState)}
    yield _metric("job_state", "1 for the state that the job is in, else 0.", states, "state")
    yield _metric("nodes", "Nodes of this round.", now.num_nodes)
    yield _metric("round", "Number of the round, counted from 0.", now.round)
    yield _metric("workers", "Workers that this node should run.", now.workers)
    yield _metric("workers_alive", "Workers that it runs.", now.alive)
    yield _metric("standbys", "Processes that wait to be workers, --preload.", now.standbys)
    yield _metric("restarts_total", "How often workers were restarted.", now.restarts)
    yield _metric("restarts_allowed", "How often they may be, --max-restarts.", now.max_restarts)
    text = "Rounds that failed, by kind of their root cause."
    yield _metric("worker_failures_total", text, dict(sorted(now.failures.items())), "reason")
    yield _metric("output_bytes_total", "Output that workers have written.", now.output_bytes)
    age = max(0.0, time.monotonic() - now.heartbeat)
    yield _metric("heartbeat_age_seconds", "Time since the agent's loop last beat.", age)


def _of_workers(now: Snapshot) -> Iterator[Metric]:
    used = [read_stat(pid) if pid > 0 else None for pid in now.pids]
    up = _by_rank(now, [pid > 0 for pid in now.pids])
    yield _metric("worker_up", "1 while the worker runs, else 0.", up, "rank")
    steps = _by_rank(now, now.steps)
    yield _metric("worker_step", "Last step that the worker reported.", steps, "rank")
    memory = _by_rank(now, [each and each.resident for each in used])
    text = "Memory that the worker's process has resident."
    yield _metric("worker_resident_memory_bytes", text, memory, "rank")
    cpu = _by_rank(now, [each and each.cpu for each in used])
    text = "CPU time of the worker's process and of those children that it has waited for."
    yield _metric("worker_cpu_seconds_total", text, cpu, "rank")


def _of_gpus(now: Snapshot, gpus: Sequence[GpuReading]) -> Iterator[Metric]:
    """Yield what the driver tells of the GPUs, of which each rank has that of its local rank."""
    for name, text, of in _OF_GPUS if gpus else ():
        told = {_gpu_labels(now, each): of(each) for each in gpus}
        values = {labels: value for labels, value in told.items() if value is not None}
        yield _metric(f"gpu_{name}", text, values, "gpu", "rank")


def _gpu_labels(now: Snapshot, gpu: GpuReading) -> tuple[str, str]:
    return str(gpu.index), str(now.first_rank + gpu.index) if gpu.index < now.workers else ""


def _part(value: int | None, of: int) -> float | None:
    return None if value is None else value / of


_OF_GPUS: Sequence[tuple[str, str, Callable[[GpuReading], float | None]]] = (
    ("memory_used_bytes", "Memory of the GPU that is in use.", lambda gpu: gpu.memory_used),
    (
        "utilization",
        "Part of the last second in which it ran kernels, 0 to 1.",
        lambda gpu: _part(gpu.utilization, 100),
    ),
    ("power_watts", "Power that it takes.", lambda gpu: _part(gpu.power, 1000)),
    ("temperature", "Its temperature in degrees Celsius.", lambda gpu: gpu.temperature),
    (
        "ecc_errors_total",
        "Uncorrected memory errors since its driver was loaded.",
        lambda gpu: gpu.ecc,
    ),
    ("xid_total", "Xids of it since the agent began.", lambda gpu: gpu.xid_count),
    ("throttled", "1 while heat or power slow it down, else 0.", lambda gpu: gpu.is_throttled),
)


def _of_notes(now: Snapshot) -> Iterator[Metric]:
    """Yield what workers noted, with no more names than a ledger keeps (torshrun/live/noted.py)."""
    noted = now.noted.workers
    steps = _by_rank(now, [each.steps for each in noted])
    yield _metric("worker_steps_total", "Steps that the worker has begun.", steps, "rank")
    samples = _by_rank(now, [each.samples for each in noted])
    yield _metric("worker_samples_total", "Samples of its steps, as it told.", samples, "rank")
    text, scalars = "What the worker has told last by this name.", [x.scalars for x in noted]
    yield _metric("worker_scalar", text, _by_name(now, scalars), "rank", "name")
    text, sections = "Time that the worker was in this section.", [x.sections for x in noted]
    named = _by_name(now, sections)
    yield _metric("worker_section_seconds_total", text, named, "rank", "section")
    lost = _by_rank(now, [each.lost for each in noted])
    text = "Steps, sections and scalars that came too fast to be counted."
    yield _metric("worker_notes_lost_total", text, lost, "rank")
    text = "Names of scalars and of sections that are left out, as there are too many."
    yield _metric("names_dropped", text, dict(now.noted.dropped), "kind")


def _of_operations(now: Snapshot, tallies: Sequence[Sequence[Tallied]]) -> Iterator[Metric]:
    found: dict[tuple[str, str], list[float]] = {}
    for rank, of_rank in enumerate(tallies, now.first_rank):
        for each in of_rank:
            total = found.setdefault((str(rank), each.operation), [0.0] * 4)
            counted = (each.calls, each.nbytes, each.seconds, each.waited)
            total[:] = [one + more for one, more in zip(total, counted, strict=True)]
    for index, (name, text) in enumerate(_OF_OPERATIONS.items()):
        values = {of: total[index] for of, total in sorted(found.items())}
        yield _metric(f"worker_{name}_total", text, values, "rank", "operation")


def _durations(tallies: Iterable[Sequence[Tallied]], durations: Iterable[Durations]) -> Metric:
    """Combine the durations of all workers of the node, so that there are not too many series."""
    text = "How long operations of this node's workers took."
    metric = HistogramMetricFamily("torsh_operation_duration_seconds", text, labels=["operation"])
    counts: dict[str, list[int]] = {}
    seconds: dict[str, float] = {}
    for operation, classes in chain.from_iterable(of_rank.items() for of_rank in durations):
        own = counts.setdefault(operation, [0] * (len(_BOUNDS) + 1))
        for below, calls in classes:
            own[_bucket(below)] += calls
    for each in chain.from_iterable(tallies):
        seconds[each.operation] = seconds.get(each.operation, 0.0) + each.seconds
    for operation, own in sorted(counts.items()):
        sums = [sum(own[: place + 1]) for place in range(len(own))]
        named = [*map(floatToGoString, _BOUNDS), "+Inf"]
        buckets = [*zip(named, map(float, sums), strict=True)]
        metric.add_metric([operation], buckets, seconds.get(operation, 0.0))
    return metric


def _bucket(below: float) -> int:
    """Return the index of the first bound that calls of less than `below` seconds keep to."""
    return next((n for n, bound in enumerate(_BOUNDS) if below <= bound * _ROUNDED), len(_BOUNDS))


def _by_rank(now: Snapshot, values: Sequence[float | None]) -> dict[str, float]:
    """Return the values that are known, of these by local rank, by the ranks of the job."""
    ranks = zip(range(now.workers), values, strict=False)
    return {str(now.first_rank + rank): value for rank, value in ranks if value is not None}


def _by_name(now: Snapshot, values: Sequence[Mapping[str, float]]) -> dict[tuple[str, str], float]:
    """Return these values, which are by local rank, by rank and name."""
    ranks = zip(range(now.workers), values, strict=False)
    return {
        (str(now.first_rank + rank), printable(name)): value
        for rank, named in ranks
        for name, value in sorted(named.items())
    }


def _metric(name: str, text: str, values: Any, *labels: str) -> Metric:
    """Return a counter if its name says so, else a gauge.

    `values` is one number, or numbers by labels.
    """
    family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    metric = family(f"torsh_{name.removesuffix('_total')}", text, labels=labels)
    for of, value in values.items() if labels else [((), values)]:
        texts = (of,) if isinstance(of, str) else of
        # What is no Unicode is spelt out: a name from a command line may be anything.
        spelt = [text.encode("utf-8", "backslashreplace").decode() for text in texts]
        metric.add_metric(spelt, value)
    return metric
