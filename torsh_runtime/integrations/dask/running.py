"""Defines run(), which calls a function as the ranks of one job, one rank per Dask worker."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torsh_runtime.comm.timeouts import seconds
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError, WorkerFailed
from torsh_runtime.integrations.dask.attempt import NOTICE, Attempt, Ended
from torsh_runtime.integrations.dask.workers import (
    addresses,
    call,
    check_client,
    places,
    serve,
    stop_serving,
)
from torsh_runtime.integrations.placed import abort, entered

_PAUSE = 0.2
"""Seconds between two checks of which workers exist."""
_log = logging.getLogger("torsh_runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits the number of ranks and restarts, and the time spent waiting."""

    num_workers: int | None
    min_workers: int
    max_workers: int | None
    max_restarts: int
    backend: str | None
    timeout: float
    start_timeout: float

    def __post_init__(self) -> None:
        for name in ("num_workers", "min_workers", "max_workers", "max_restarts"):
            value, least = getattr(self, name), int(name != "max_restarts")
            is_left_out = value is None and name in ("num_workers", "max_workers")
            if not is_left_out and (type(value) is not int or value < least):
                raise ConfigError(f"{name} must be a whole number from {least} on, not {value!r}")
        seconds(self.timeout, self.timeout, "timeout")
        seconds(self.start_timeout, self.start_timeout, "start_timeout")
        order = (self.min_workers, self.num_workers, self.max_workers)
        given = [number for number in order if number is not None]
        if given != sorted(given):
            raise ConfigError(
                "min_workers, num_workers and max_workers must not decrease; they are "
                f"{self.min_workers}, {self.num_workers} and {self.max_workers}"
            )

    @property
    def most(self) -> int | None:
        """Return the largest number of ranks; None means the number of workers at the start."""
        return self.num_workers if self.max_workers is None else self.max_workers


def run(
    client: Any,
    function: Callable[..., Any],
    *args: Any,
    num_workers: int | None = None,
    min_workers: int = 1,
    max_workers: int | None = None,
    max_restarts: int = 3,
    backend: str | None = None,
    timeout: float = 1800.0,
    start_timeout: float = 60.0,
    **kwargs: Any,
) -> list[Any]:
    """Call the function on each Dask worker, as the ranks of one job with a default group.

    Returns what the ranks return, in rank order. Futures among the arguments are replaced by their
    results. The ranks start together: none calls the function before all are running.

    num_workers: the number of ranks at the start; None: one for each worker.
    min_workers: how many workers must remain to continue after one was lost.
    max_workers: the largest number of ranks; None: as many as at the start. While there are fewer,
        new workers end all ranks, and the function is called again on more workers.
    max_restarts: how often the function is called again because a worker was lost. The function
        restores its own state, from a Checkpointer.
    backend, timeout: as for init_process_group().
    start_timeout: seconds within which all ranks must have started; a worker that is busy with
        other tasks delays this.

    Raises ConfigError, before anything runs, if there are fewer workers than requested, if several
    workers are one process, or for invalid options; CommTimeout naming the ranks that have not
    started; the function's own error on a rank; WorkerFailed if no restart is left, too few workers
    are left, or ranks do not end or are cancelled.
    """
    limits = Limits(
        num_workers=num_workers,
        min_workers=min_workers,
        max_workers=max_workers,
        max_restarts=max_restarts,
        backend=backend,
        timeout=timeout,
        start_timeout=start_timeout,
    )
    check_client(client)
    chosen, restarts = _first(client, limits), 0
    most = limits.most or len(chosen)
    for turn in itertools.count():
        outcome = _attempt(client, chosen, turn, limits, most, function, args, kwargs)
        if isinstance(outcome, list):
            return outcome
        _log.warning("torsh on Dask: %s; the ranks begin again", outcome)
        restarts += not outcome.for_growth
        if restarts > limits.max_restarts:
            raise WorkerFailed(f"{outcome}, and max_restarts is {limits.max_restarts}")
        chosen = _left(client, limits, most, outcome)
    raise AssertionError("the loop has no end")


def _first(client: Any, limits: Limits) -> list[str]:
    there = addresses(client)
    asked = limits.num_workers or limits.min_workers
    if len(there) < asked:
        raise ConfigError(
            f"{asked} Dask workers were asked for and {len(there)} are there: add workers "
            f"(cluster.scale({asked}), client.wait_for_workers({asked})), or ask for fewer"
        )
    return there[: limits.num_workers or limits.max_workers]


def _left(client: Any, limits: Limits, most: int, outcome: Ended) -> list[str]:
    """Return the workers on which the ranks restart."""
    deadline = time.monotonic() + limits.start_timeout
    while True:
        there = [address for address in addresses(client) if address not in outcome.lost]
        if len(there) >= limits.min_workers:
            return there[:most]
        if time.monotonic() > deadline:
            raise WorkerFailed(
                f"{outcome}, and {len(there)} Dask workers are left for {limits.min_workers} "
                f"(min_workers)"
            )
        time.sleep(_PAUSE)


def _attempt(
    client: Any,
    chosen: Sequence[str],
    turn: int,
    limits: Limits,
    most: int,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> list[Any] | Ended:
    """Call the function as ranks on these workers; return their results, or why they ended."""
    try:
        where = places(client, chosen)
        rendezvous = call(client, chosen[:1], serve, where[0].host)[chosen[0]]
    except WorkerFailed:
        gone = _gone(client, chosen)
        if not gone:
            raise
        return Ended(gone, 0)
    futures = []
    try:
        for address, env in zip(chosen, rendezvous.environments(where, "dask", turn), strict=True):
            futures.append(
                client.submit(
                    _rank,
                    env,
                    (limits.backend, limits.timeout, limits.start_timeout),
                    function,
                    args,
                    kwargs,
                    workers=[address],
                    allow_other_workers=False,
                    pure=False,
                    retries=0,
                )
            )
        return Attempt(client, chosen, futures, most).outcome()
    except BaseException:
        _call_there(client, chosen, abort)  # ranks that still run are useless now
        raise
    finally:
        client.cancel(futures)
        _call_there(client, chosen[:1], stop_serving, rendezvous.endpoint)


def _gone(client: Any, chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the workers that are gone, once the scheduler has noticed one or NOTICE has passed."""
    deadline = time.monotonic() + NOTICE
    while True:
        there = addresses(client)
        gone = tuple(address for address in chosen if address not in there)
        if gone or time.monotonic() > deadline:
            return gone
        time.sleep(_PAUSE)


def _call_there(
    client: Any, workers: Sequence[str], function: Callable[..., Any], *args: Any
) -> None:
    """Do call() on those workers that still exist, and ignore workers that leave meanwhile."""
    with suppress(WorkerFailed):
        there = [address for address in workers if address in addresses(client)]
        if there:
            call(client, there, function, *args)


def _rank(
    env: WorkerEnv,
    settings: tuple[str | None, float, float],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    backend, timeout, start_timeout = settings
    with entered(env, backend, timeout, start_timeout):
        return function(*args, **kwargs)
