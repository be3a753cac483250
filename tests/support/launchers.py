"""Runs the same command under torshrun and under torchrun, and collects what its workers saw."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from support.localhost import skip_unless_torchrun_starts
from support.processes import marked, soon

Tool = Literal["torshrun", "torchrun"]
MODULES = {"torshrun": "torshrun", "torchrun": "torch.distributed.run"}
KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
PATIENCE = 120
"""Seconds after which a launcher that does not end is given up."""

PROBE = """
import json, os, sys
rank, restart = (int(os.environ[name]) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
facts = {
    "environ": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(), "path0": sys.path[0],
    "name": __name__, "file": os.path.abspath(__file__), "executable": sys.executable,
    "unbuffered": sys.stdout.write_through, "leader": os.getpgrp() == os.getpid(),
}
place = os.path.join(os.environ["PROBED"], f"{rank}.{restart}.json")
with open(place + "~", "w") as file:
    json.dump(facts, file)
os.rename(place + "~", place)
exec(os.environ.get("THEN", ""))
"""
"""The worker: writes down what it sees and then does what THEN, which is Python, says. A file
`place + ".ready"` says that a signal may come.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a launcher, after its end."""

    code: int
    out: str
    err: str
    seen: Mapping[tuple[int, int], Any]
    """What each worker wrote down, by its rank and its restart count."""
    logs: Mapping[str, str]
    """The files below the directory "logs", without the job's own directory."""

    def worker(self, rank: int = 0, restart: int = 0) -> Any:
        assert (rank, restart) in self.seen, (self.code, self.err)
        return self.seen[rank, restart]


class Bench:
    """A directory with probe.py in it, and the runs made there. Equal runs are made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[object, Run] = {}
        self._numbers = itertools.count()
        (folder / "probe.py").write_text(PROBE)
        (folder / "tmp").mkdir()

    def both(self, *argv: str, **options: Any) -> tuple[Run, Run]:
        """The run under torshrun and the one under torchrun."""
        return self.run("torshrun", *argv, **options), self.run("torchrun", *argv, **options)

    def run(
        self,
        tool: Tool,
        *argv: str,
        then: str = "",
        environ: Mapping[str, str] | None = None,
        signo: int = 0,
        workers: int = 1,
        stdin: str = "",
    ) -> Run:
        """Run a command to its end; `signo` is sent once `workers` workers are ready for it."""
        key = (tool, argv, then, tuple((environ or {}).items()), signo, workers, stdin)
        if tool == "torchrun":
            skip_unless_torchrun_starts()
        if key not in self._runs:
            name = f"{tool}-{next(self._numbers)}"
            (self.folder / name).mkdir()
            given = {"THEN": then, **(environ or {})}
            self._runs[key] = self._run(tool, name, argv, given, signo, workers, stdin)
        return self._runs[key]

    def _run(
        self,
        tool: Tool,
        name: str,
        argv: tuple[str, ...],
        given: Mapping[str, str],
        signo: int,
        workers: int,
        stdin: str,
    ) -> Run:
        place = self.folder / name
        environ = self._environ(place, given)
        command = [sys.executable, "-m", MODULES[tool]]
        command += [word.replace("LOGS", name) for word in argv]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                if signo:
                    assert soon(lambda: len([*place.glob("*.ready")]) == workers, PATIENCE)
                    process.send_signal(signal.Signals(signo))
                    process.wait(PATIENCE)
                    _end(str(place))  # torchrun's workers may outlive it, and hold the pipes
                out, err = process.communicate(stdin, timeout=PATIENCE)
            finally:
                process.kill()
                _end(str(place))
        return Run(process.returncode, out, err, _seen(place), _logs(place))

    def _environ(self, place: Path, given: Mapping[str, str]) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {**kept, "TMPDIR": str(self.folder / "tmp"), "PROBED": str(place), **given}


def _end(mark: str) -> None:
    for pid in marked(mark):
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(pid, signal.SIGKILL)
    assert soon(lambda: not marked(mark))


def _seen(place: Path) -> dict[tuple[int, int], Any]:
    found = {}
    for file in place.glob("*.json"):
        rank, restart, _ = file.name.split(".")
        found[int(rank), int(restart)] = json.loads(file.read_text())
    return found


def _logs(place: Path) -> dict[str, str]:
    """With LOGS as the log directory: what was kept, by its path below the job's directory."""
    files = [file for file in place.glob("*/attempt_*/**/*") if file.is_file()]
    return {"/".join(file.relative_to(place).parts[1:]): file.read_text() for file in files}
