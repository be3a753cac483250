"""A run of pytest as it can be seen from outside: a plugin writes it down with `--record DIR`."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

STACKS_SIGNAL = signal.SIGRTMAX - 1
"""A process of pytest that gets it writes the stacks of its threads down, though it be in C code
that holds the GIL."""


class Cost(NamedTuple):
    """How many seconds tests lasted, and how many they kept processors busy."""

    lasted: float = 0.0
    worked: float = 0.0


class Record:
    """The folder in which a run is written down. Processes of pytest are known by their pids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("running", "stacks", "costs"):
            (folder / part).mkdir(exist_ok=True)

    def running(self) -> dict[int, tuple[str, float]]:
        """The test that each process is in the midst of, and since how many seconds."""
        now = time.time()
        files = {int(file.name): file for file in (self.folder / "running").iterdir()}
        return {
            pid: (name, now - file.stat().st_mtime)
            for pid, file in files.items()
            if (name := file.read_text()) and Path(f"/proc/{pid}").exists()
        }

    def stacks(self) -> dict[int, Path]:
        """The file that each process writes its stacks to."""
        return {int(file.name): file for file in (self.folder / "stacks").iterdir()}

    def costs(self) -> dict[str, Cost]:
        """What the tests of each file took, by the file's path."""
        sums: dict[str, Cost] = {}
        for file in (self.folder / "costs").iterdir():
            for name, *cost in map(json.loads, file.read_text().splitlines()):
                path = name.split("::")[0]
                sums[path] = Cost(*map(sum, zip(sums.get(path, Cost()), cost, strict=True)))
        return sums

    def failed(self) -> list[str]:
        """Tests that failed, each once, in the order in which they did."""
        return list(dict.fromkeys(self._noted("failed")))

    def passed(self) -> set[str]:
        """Tests whose body ran to its end."""
        return {*self._noted("passed")} - {*self._noted("failed")}

    def left_out(self) -> list[str]:
        """Tests that were collected and have no outcome."""
        return sorted({*self._noted("collected")} - {*self._noted("ended")})

    def is_collected(self) -> bool:
        """Whether every file of tests could be loaded."""
        return not any(self._noted("not loaded"))

    def _noted(self, wanted: str) -> Iterator[str]:
        file = self.folder / "outcomes"
        for line in file.read_text().splitlines() if file.exists() else ():
            kind, name = json.loads(line)
            if kind == wanted:
                yield name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="DIR", help="write down there how far the run is")


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("--record"):
        record = Record(Path(folder))
        config.pluginmanager.register(_Process(record))
        if not hasattr(config, "workerinput"):  # what xdist gives to its workers
            config.pluginmanager.register(_Outcomes(record))


class _Process:
    """Writes down which test runs in this process, what each took, and on a signal its stacks."""

    def __init__(self, record: Record) -> None:
        self._costs = record.folder / "costs" / str(os.getpid())
        self._running = record.folder / "running" / str(os.getpid())
        self._stacks = (record.folder / "stacks" / str(os.getpid())).open("w")
        faulthandler.register(STACKS_SIGNAL, self._stacks)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._running.write_text(item.nodeid)
        begin, before = time.monotonic(), _processor_seconds()
        try:
            return (yield)
        finally:
            cost = (time.monotonic() - begin, _processor_seconds() - before)
            with self._costs.open("a") as out:
                out.write(json.dumps([item.nodeid, *cost]) + "\n")
            self._running.write_text("")

    def pytest_unconfigure(self) -> None:
        faulthandler.unregister(STACKS_SIGNAL)
        self._stacks.close()


def _processor_seconds() -> float:
    """The time of processors that this process has used, with the children that it waited for."""
    return sum(os.times()[:4])


class _Outcomes:
    """Writes down what becomes of all tests, in the process that is told of all of them."""

    def __init__(self, record: Record) -> None:
        self._file = record.folder / "outcomes"

    def _note(self, kind: str, *names: str) -> None:
        with self._file.open("a") as out:
            out.writelines(json.dumps([kind, name]) + "\n" for name in names)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not session.config.option.collectonly:
            self._note("collected", *(item.nodeid for item in session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._note("collected", *ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note("not loaded", report.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._note("failed", report.nodeid)
        elif report.passed and report.when == "call":
            self._note("passed", report.nodeid)
        if report.when not in ("setup", "call"):  # the last of a test, or of a worker that crashed
            self._note("ended", report.nodeid)
