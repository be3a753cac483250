"""The launchers side by side: how each is called, and how each is tried."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.peers import GLOO, MPICH, OPENMPI, OURS, Peer, UnavailableError, prepare
from benchmarks.processes import RunError

TORSHRUN, TORCHRUN = "torshrun", "torchrun"
_T = TypeVar("_T")
# Installed packages are compiled to bytecode once: a setting against that must not slow anyone.
_ENV = {"PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How one launcher is called."""

    name: str
    peer: Peer
    start: tuple[str, ...] = ()
    """The launcher itself, where it has torchrun's options; empty where it has not."""

    @property
    def env(self) -> dict[str, str]:
        """Variables on top of this process's own."""
        return {**self.peer.env, **_ENV}

    def command(self, workers: int, *options: str) -> tuple[str, ...]:
        """Up to the script. Only with torchrun's options are others than the number allowed."""
        if self.start:
            return (*self.start, "--nproc-per-node", str(workers), *options)
        return tuple(self.peer.command(workers, workers, options))


def launchers() -> list[Launcher]:
    """All that are known; ours is first."""
    return [
        Launcher(name=TORSHRUN, peer=OURS, start=(OURS.python, "-m", "torshrun")),
        Launcher(name=TORCHRUN, peer=GLOO, start=(str(GLOO.bin / "torchrun"),)),
        *(Launcher(name=f"mpiexec ({peer.name})", peer=peer) for peer in (MPICH, OPENMPI)),
    ]


def available(names: Container[str]) -> tuple[list[Launcher], dict[str, str]]:
    """Those of these launchers that are here, with versions; the others are named with why not."""
    found, versions = [], {}
    for launcher in launchers():
        if launcher.name not in names:
            continue
        try:
            versions[launcher.name] = prepare(launcher.peer)
            found.append(launcher)
        except UnavailableError as error:
            print(f"{launcher.name}: not available here: {error}", flush=True)
    return found, versions


class Attempts:
    """Tries measurements, each in a folder of its own; what failed once is not tried again."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def take(self, what: str, measure: Callable[[Path], _T]) -> _T | None:
        """What `measure` returns; None if it fails now or has failed before."""
        if what in self.failures:
            return None
        with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
            try:
                return measure(Path(name))
            except (RunError, OSError) as error:
                self.failures[what] = str(error)
                print(f"{what}: failed: {error}", file=sys.stderr, flush=True)
        return None


@contextlib.contextmanager
def error_log(folder: Path) -> Iterator[int]:
    """A descriptor for a launcher's stderr, whose end becomes part of a RunError's message."""
    log = folder / "stderr"
    with log.open("w") as errors:
        try:
            yield errors.fileno()
        except RunError as error:
            raise RunError(f"{error}; stderr: {log.read_text()[-1500:].strip()}") from None
