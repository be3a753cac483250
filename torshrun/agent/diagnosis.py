"""From endings of workers to what is known of a round that is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torshrun.agent.round import Round
from torshrun.config.job import OutputConfig
from torshrun.failure.exits import Exit, OomEvidence, how
from torshrun.safe_files import Folder
from torshrun.workers.group import Worker

if TYPE_CHECKING:
    from torshrun.failure.cause import Kind

STARTUP_SECONDS = 10.0
"""A worker that failed so soon, before any process group was initialised, failed at its start."""
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KEPT_BYTES = 1 << 20
"""How much of a worker's error file is kept."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Why a round ended as it did."""

    exits: tuple[Exit, ...] = ()
    """How its workers ended, in the order in which they did."""
    cause: Exit | None = None
    """The one that explains the others; None if none failed."""
    kind: Kind | None = None
    startup: str = ""
    """How it failed, if that was at its start and trying again may not change it."""

    @property
    def summary(self) -> str:
        """The cause in one line; "" if there is none."""
        cause = self.cause
        return f"rank {cause.rank}: {how(cause)} ({self.kind})" if cause else ""


class Diagnosis:
    """Collects the facts about exits."""

    def __init__(self, output: OutputConfig, folder: Folder | None) -> None:
        """`folder` is where output is kept."""
        self._output = output
        self._folder = folder
        self.hung: Mapping[int, str] = {}
        """What was found about ranks that hang, in one line each."""

    def exit(self, ending: Worker, oom: OomEvidence | None = None) -> Exit:
        """How a worker ended, but for what it may have left in its error file."""
        place = ending.assignment.worker
        return Exit(
            rank=place.rank,
            host=os.uname().nodename,
            pid=ending.pid,
            status=ending.status,
            seconds=ending.seconds,
            stopped=ending.stopped,
            stderr=ending.streams[1].tail or b"",
            log=ending.assignment.folder if self._output.kept(place) else "",
            program=ending.assignment.argv[0],
            peak_rss_kib=ending.peak_rss_kib,
            oom=oom,
            hung=self.hung.get(place.rank, ""),
        )

    async def findings(self, endings: Sequence[Worker], a_round: Round | None = None) -> Findings:
        """What is known of a round with these endings so far; more if it is over."""
        if not any(ending.status for ending in endings) and not self.hung:
            return Findings(tuple(map(self.exit, endings)))
        from concurrent.futures import ThreadPoolExecutor

        oom = a_round.memory.evidence() if a_round else None
        pages = a_round.pages.read() if a_round else ()
        initialised = any(each.initialised for each in pages)
        # Last words of hundreds of workers take their time, and the keeper and the other nodes want
        # signs of life meanwhile. The loop's own executor needs another thread for its end.
        executor = ThreadPoolExecutor(1)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(executor, self._examine, endings, oom, initialised)
        except RuntimeError:  # there is no thread to be had
            return self._examine(endings, oom, initialised)
        finally:
            executor.shutdown(wait=False)

    def _examine(
        self, endings: Sequence[Worker], oom: OomEvidence | None, initialised: bool
    ) -> Findings:
        from torshrun.failure.cause import diagnose, root_cause  # at the start it would take time

        exits = tuple(self._account(ending, self.exit(ending, oom)) for ending in endings)
        cause = root_cause(exits)
        if cause is None:
            return Findings(exits)
        kind, _ = diagnose(cause)
        return Findings(exits, cause, kind, "" if initialised else _startup(cause, kind))

    def _account(self, ending: Worker, exit_: Exit) -> Exit:
        """With what the worker left in its error file, which is kept beside its output."""
        from torshrun.failure.error_file import load_account

        path = ending.assignment.worker.error_file
        if not ending.status or not os.path.lexists(path):
            return exit_
        if self._folder:
            with contextlib.suppress(OSError):
                _keep(path, self._folder, f"{ending.assignment.folder}/error.json")
        return replace(exit_, account=load_account(path))


def _keep(path: str, folder: Folder, kept: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as left, os.fdopen(folder.open_for_append(kept), "wb") as file:
        if not os.fstat(file.fileno()).st_size:  # it may have been kept before
            file.write(left.read(KEPT_BYTES))


def _startup(cause: Exit, kind: Kind) -> str:
    from torshrun.failure.cause import Kind, fingerprint

    if cause.hung or cause.seconds > STARTUP_SECONDS or cause.signo in _FROM_OUTSIDE:
        return ""
    by_chance = kind in (Kind.ADDRESS_IN_USE, Kind.OUT_OF_MEMORY, Kind.PEER_LOST)
    return "" if by_chance else fingerprint(cause)
