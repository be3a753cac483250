"""Defines the compared launchers: how each is called, and how each is tried."""

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
# Packages are compiled to bytecode once when installed; a setting must not prevent that.
_ENV = {"PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """Describes how to call one launcher."""

    name: str
    peer: Peer
    start: tuple[str, ...] = ()
    """The launcher itself, if it has torchrun's options; otherwise empty."""

    @property
    def env(self) -> dict[str, str]:
        """Return the variables to add to this process's own."""
        return {**self.peer.env, **_ENV}

    def command(self, workers: int, *options: str) -> tuple[str, ...]:
        """Return the command before the script.

        Other options than the number are allowed only if it has torchrun's options.
        """
        if self.start:
            return (*self.start, "--nproc-per-node", str(workers), *options)
        return tuple(self.peer.command(workers, workers, options))


def launchers() -> list[Launcher]:
    """Return all known launchers; ours is first."""
    return [
        Launcher(name=TORSHRUN, peer=OURS, start=(OURS.python, "-m", "torshrun")),
        Launcher(name=TORCHRUN, peer=GLOO, start=(str(GLOO.bin / "torchrun"),)),
        *(Launcher(name=f"mpiexec ({peer.name})", peer=peer) for peer in (MPICH, OPENMPI)),
    ]


def available(names: Container[str]) -> tuple[list[Launcher], dict[str, str]]:
    """Return those of the launchers that are available, and their versions by name.

    The reason is printed for each of the others.
    """
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
    """Runs measurements, each in its own folder. A measurement that failed is not tried again."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def take(self, what: str, measure: Callable[[Path], _T]) -> _T | None:
        """Return the result of `measure`; None if it fails now or has failed before."""
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
    """Yield a descriptor for a launcher's stderr, whose end is added to a RunError's message."""
    log = folder / "stderr"
    with log.open("w") as errors:
        try:
            yield errors.fileno()
        except RunError as error:
            raise RunError(f"{error}; stderr: {log.read_text()[-1500:].strip()}") from None
