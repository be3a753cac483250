"""Provides statistics of what this process communicates."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from torsh_runtime.monitoring.layout import (
    NO_OPERATIONS,
    Operation,
    Tallied,
    operations_of,
    tallies_of,
)
from torsh_runtime.monitoring.recording import own_recording


@dataclass(frozen=True, slots=True)
class OperationStatistics:
    """Holds statistics of all calls of one operation by this process.

    Example:
        ```python
        stats = tr.monitoring.DistributedMonitor().get_stats()
        print(stats.operations.get("all_reduce", tr.monitoring.OperationStatistics()).calls)
        ```
    """

    calls: int = 0
    """Number of calls."""
    nbytes: int = 0
    """Bytes of this rank's array, summed over the calls."""
    seconds: float = 0.0
    """Seconds from entering the calls to leaving them, with waiting for others."""
    waited: float = 0.0
    """Seconds of these until all ranks had entered, of a recv until its sender had; 0 where that is
    not known."""


@dataclass(frozen=True, slots=True)
class CommunicationStatistics:
    """Holds the result of DistributedMonitor.get_stats().

    Example:
        ```python
        stats = monitor.get_stats()
        print(f"{stats.total_communications} calls took {stats.total_comm_time:.3f} s")
        ```
    """

    total_communications: int
    """Number of calls."""
    total_bytes_communicated: int
    """Bytes of this rank's arrays, summed over the calls."""
    total_comm_time: float
    """Seconds of the calls."""
    total_wait_time: float
    """Seconds of these until all ranks had entered, as far as that is known."""
    average_latency_ms: float
    """Mean duration of a call, in milliseconds."""
    bandwidth_gbps: float
    """10^9 bits a second, of the time in which bytes moved: waiting for others is left out."""
    operations: Mapping[str, OperationStatistics]
    """Statistics by the operations' names. The totals count neither "wait", for operations in the
    background, nor "batch", which launches several together."""


class DistributedMonitor:
    """Counts this process's operations since it was created, of all native groups.

    They are counted all the time, by the recorder, so one more monitor costs nothing. Calls that a
    program times itself are added by log_comm_time(). Any thread may use it.

    Example:
        ```python
        monitor = tr.monitoring.DistributedMonitor()
        tr.all_reduce(gradient)
        monitor.get_stats().operations["all_reduce"].calls  # 1
        ```
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: dict[str, OperationStatistics] = {}
        self._before = _counted()

    def log_comm_time(self, operation: str, duration: float | timedelta, nbytes: int = 0) -> None:
        """Add a call that the recorder does not know, such as one of another library.

        Args:
            operation: The operation's name.
            duration: Seconds, or a timedelta.
            nbytes: The bytes of this rank's array.

        Raises:
            ValueError: If `duration` is less than 0 or no number.

        Example:
            ```python
            monitor.log_comm_time("exchange", duration=0.25, nbytes=1024)
            ```
        """
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"duration={duration} must be a number of seconds, 0 or more")
        with self._lock:
            known = self._logged.get(operation, OperationStatistics())
            self._logged[operation] = _sum(known, OperationStatistics(1, nbytes, seconds))

    def get_stats(self) -> CommunicationStatistics:
        """Return the statistics since this monitor was created or reset.

        Example:
            ```python
            print(monitor.get_stats().total_comm_time, "seconds")
            ```
        """
        with self._lock:
            found = dict(self._logged)
        for name, counted in _counted().items():
            since = _difference(counted, self._before.get(name, OperationStatistics()))
            if since.calls > 0:
                found[name] = _sum(found.get(name, OperationStatistics()), since)
        return _summary(found)

    def reset(self) -> None:
        """Count from now on."""
        with self._lock:
            self._logged.clear()
        self._before = _counted()


def recent_operations() -> list[Operation]:
    """Return the last operations of this process's native groups, at most 1,024.

    They are in the order in which they began. The list is empty if TORSH_RECORDER is off.

    Example:
        ```python
        for each in tr.monitoring.recent_operations()[-10:]:
            print(each.operation, each.nbytes, each.state)
        ```
    """
    recording = own_recording()
    if recording is None:
        return []
    words = recording.words()
    return operations_of(words, recording.words())


def _counted() -> dict[str, OperationStatistics]:
    recording = own_recording()
    found: dict[str, OperationStatistics] = {}
    if recording is not None:
        for each in tallies_of(recording.words()):
            known = found.get(each.operation, OperationStatistics())
            found[each.operation] = _sum(known, _statistics(each))
    return found


def _statistics(tallied: Tallied) -> OperationStatistics:
    return OperationStatistics(tallied.calls, tallied.nbytes, tallied.seconds, tallied.waited)


def _sum(one: OperationStatistics, other: OperationStatistics) -> OperationStatistics:
    return OperationStatistics(
        one.calls + other.calls,
        one.nbytes + other.nbytes,
        one.seconds + other.seconds,
        one.waited + other.waited,
    )


def _difference(later: OperationStatistics, before: OperationStatistics) -> OperationStatistics:
    return OperationStatistics(
        later.calls - before.calls,
        later.nbytes - before.nbytes,
        max(later.seconds - before.seconds, 0.0),
        max(later.waited - before.waited, 0.0),
    )


def _summary(found: Mapping[str, OperationStatistics]) -> CommunicationStatistics:
    total = OperationStatistics()
    for name, each in found.items():
        if name not in NO_OPERATIONS:
            total = _sum(total, each)
    moving = total.seconds - total.waited
    return CommunicationStatistics(
        total_communications=total.calls,
        total_bytes_communicated=total.nbytes,
        total_comm_time=total.seconds,
        total_wait_time=total.waited,
        average_latency_ms=total.seconds / total.calls * 1e3 if total.calls else 0.0,
        bandwidth_gbps=total.nbytes * 8 / moving / 1e9 if moving > 0 else 0.0,
        operations=dict(found),
    )
