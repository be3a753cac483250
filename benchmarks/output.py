"""Measures how fast worker output arrives through launchers, whether it is whole, and its cost."""

from __future__ import annotations

import contextlib
import os
import re
import select
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.launchers import TORCHRUN, TORSHRUN, Attempts, Launcher, error_log
from benchmarks.output_worker import BLOCK_BYTES, lines
from benchmarks.processes import Program, RunError, started, wait_until
from benchmarks.table import MISSING, render

WORKERS = 4
WORKER = Path(__file__).with_name("output_worker.py")
_MIB = 2**20
_OURS, _THEIRS = "[{rank}] ", "[default{rank}]:"  # prefixes
_END_SECONDS = 20.0
_QUIET_MS = 300  # after so long without output, all that workers have written has arrived
_PIECE = 4 * _MIB
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
# Not shown by a terminal: first the status line, drawn without wrapping, then other sequences.
_STATUS = re.compile(rb"\x1b\[\?7l.*?\x1b\[\?7h\r")
_ESCAPE = re.compile(rb"\x1b(?:\[[\d;?]*[A-Za-z]|[D78])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Describes the written output and its path."""

    name: str
    launcher: str
    prefix: str
    """Text that the launcher puts before each line; {rank} is the rank."""
    options: tuple[str, ...] = ()
    line_bytes: int = 80
    share: float = 1.0
    """Share of the usual amount that is written, below 1 where it takes long."""
    terminal: bool = False
    """True if the launcher's stdout is a pseudo-terminal, not a pipe."""

    @property
    def kept(self) -> bool:
        """Return whether files keep the output, too."""
        return "--tee" in self.options

    def blocks(self, amount: int) -> int:
        """Return the blocks that each worker writes if all together write about `amount` bytes."""
        return max(1, round(amount * self.share / WORKERS / BLOCK_BYTES))


@dataclass(frozen=True, slots=True)
class Sample:
    """Holds the figures of one run of one case."""

    megabytes_per_second: float
    """Rate of the workers' output (10^6 bytes), from their start to the last arrival."""
    agent_peak_mib: float
    """Largest resident set of the agent."""
    agent_seconds_per_gb: float
    """Processor time of the agent for 10^9 bytes of workers' output."""
    lost: int
    """Number of lines that were written and did not arrive."""
    wrong: int
    """Number of lines that arrived and were not written, or arrived too often."""


def cases() -> list[Case]:
    """Return the cases. Ours and torchrun's of one name are compared."""
    found = []
    for size, share in ((80, 1 / 4), (20, 1 / 8)):
        pipe = Case(name=f"pipe, {size} B", launcher=TORSHRUN, prefix=_OURS, line_bytes=size)
        tee = replace(pipe, name=f"--tee 3, {size} B", options=("--tee", "3"))
        found += [pipe, replace(pipe, launcher=TORCHRUN, prefix="")]
        found += [tee, replace(tee, launcher=TORCHRUN, prefix=_THEIRS, share=share)]
    stamped = replace(found[0], name="--log-timestamps, 80 B", options=("--log-timestamps",))
    terminal = replace(found[0], name="terminal, 80 B", terminal=True)
    return [*found, stamped, terminal, replace(terminal, launcher=TORCHRUN, prefix="")]


class Gate:
    """Lets all workers start, and end, at the same moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        os.mkfifo(folder / "gate")
        self._descriptor = -1

    def open(self) -> None:
        self._descriptor = os.open(self._folder / "gate", os.O_RDWR)  # does not block

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def wait(self, process: subprocess.Popen[str], deadline: float) -> None:
        """Wait until all workers are at the gate. Raises RunError if they do not arrive."""
        wait_until(
            lambda: self.have("ready") or process.poll() is not None, deadline - time.monotonic()
        )
        if not self.have("ready"):
            fate = "in time" if process.poll() is None else f"before status {process.poll()}"
            raise RunError(f"the workers were not ready {fate}")

    def have(self, word: str) -> bool:
        """Return whether all workers have reported `word`."""
        return all((self._folder / f"{word}-{rank}").exists() for rank in range(WORKERS))


class Drain:
    """Reads the output and keeps it for later, as examining it would take time."""

    def __init__(self, descriptor: int, room: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._buffer = bytearray(b"\n") * room  # touched here, not while time is measured
        self._view = memoryview(self._buffer)
        self._size = 0
        self.last = 0.0
        """Time of the latest arrival, by time.monotonic()."""

    @property
    def text(self) -> memoryview:
        """Return the output so far."""
        return self._view[: self._size]

    def until_quiet(self, gate: Gate, deadline: float) -> None:
        """Read until workers have written everything and no more arrives for a while."""
        while self._read(deadline):
            if not self._poll.poll(_QUIET_MS) and gate.have("done"):
                return
        raise RunError("the launcher's output ended before its workers did")

    def until_end(self, deadline: float) -> None:
        """Read until nobody holds the other end."""
        while self._read(deadline):
            self._poll.poll(_QUIET_MS)

    def _read(self, deadline: float) -> bool:
        """Read what has arrived. Return False at the end; raise RunError after the deadline."""
        while time.monotonic() < deadline:
            try:
                count = os.readv(self._descriptor, [self._view[self._size :]])
            except BlockingIOError:
                return True
            except OSError:  # EIO: a pseudo-terminal's other side is closed
                return False
            if not count:
                return False
            self._size, self.last = self._size + count, time.monotonic()
            if self._size == len(self._buffer):
                raise RunError("more output than workers can have written")
        raise RunError("not done in time")


def measure(case: Case, launcher: Launcher, folder: Path, amount: int, timeout: float) -> Sample:
    """Do one run.

    Raises RunError if it fails or its log files differ from what workers wrote.
    """
    deadline, blocks = time.monotonic() + timeout, case.blocks(amount)
    written = WORKERS * blocks * len(lines(0, case.line_bytes)) * case.line_bytes
    program, gate = _program(case, launcher, folder, blocks), Gate(folder)
    with (
        error_log(folder) as errors,
        _launched(program, case.terminal, errors) as (process, reader),
    ):
        drain = Drain(reader, 2 * written + _MIB)
        with contextlib.closing(gate):
            gate.wait(process, deadline)
            seconds, spent, peak = _carry(process.pid, gate, drain, deadline)
        drain.until_end(deadline)
    if case.kept:
        check_files(folder, case.line_bytes, blocks)
    lost, wrong = compare(drain.text, expected(case, blocks))
    return Sample(written / seconds / 1e6, peak, spent / written * 1e9, lost, wrong)


def _carry(pid: int, gate: Gate, drain: Drain, deadline: float) -> tuple[float, float, float]:
    """Return the seconds until the last arrival, and the agent's processor seconds and peak MiB."""
    begun, spent = time.monotonic(), cpu_seconds(pid)
    gate.open()
    drain.until_quiet(gate, deadline)
    if not drain.text:
        raise RunError("none of the workers' output arrived")
    return drain.last - begun, cpu_seconds(pid) - spent, peak_mib(pid)


@contextlib.contextmanager
def _launched(
    program: Program, terminal: bool, errors: int
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start the launcher, and yield it and the descriptor of its output.

    Raises RunError if it does not end with status 0 in time.
    """
    reader, writer = os.openpty() if terminal else os.pipe()
    with os.fdopen(reader, "rb"), contextlib.ExitStack() as stack:
        with os.fdopen(writer, "wb"):
            process = stack.enter_context(started(program, stdout=writer, stderr=errors))
        yield process, reader
        if not wait_until(lambda: process.poll() is not None, _END_SECONDS):
            raise RunError(f"still running {_END_SECONDS:.0f} s after its output's end")
        if process.returncode:
            raise RunError(f"exit status {process.returncode}")


def _program(case: Case, launcher: Launcher, folder: Path, blocks: int) -> Program:
    options = (*case.options, "--log-dir", str(folder / "logs")) if case.kept else case.options
    script = (str(WORKER), str(folder), str(case.line_bytes), str(blocks))
    env = launcher.env | {"TMPDIR": str(folder), "TERM": "xterm-256color", "NO_COLOR": ""}
    return Program((*launcher.command(WORKERS, *options), *script), folder, env)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of this process so far, without its children's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    """Return the largest resident set of this process so far; 0 once it has ended."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def expected(case: Case, blocks: int) -> Counter[bytes]:
    """Return how often each line must arrive, without its end."""
    found = Counter[bytes]()
    for rank in range(WORKERS):
        prefix = case.prefix.format(rank=rank).encode()
        found.update({prefix + line[:-1]: blocks for line in lines(rank, case.line_bytes)})
    return found


def compare(text: memoryview, wanted: Mapping[bytes, int]) -> tuple[int, int]:
    """Return how many lines are missing, and how many are there that should not be.

    Times before lines and sequences that a terminal would not show are ignored.
    """
    found = Counter[bytes]()
    for piece in _pieces(text):
        found.update(_plain(piece).splitlines())
    found[b""] = 0  # empty rows of a terminal
    wanted = Counter(wanted)
    return (wanted - found).total(), (found - wanted).total()


def _pieces(text: memoryview) -> Iterator[bytes]:
    """Yield whole lines, some MiB at a time."""
    rest = b""
    for start in range(0, len(text), _PIECE):
        piece = rest + text[start : start + _PIECE]
        cut = piece.rfind(b"\n") + 1
        yield piece[:cut]
        rest = piece[cut:]
    yield rest


def _plain(text: bytes) -> bytes:
    if b"\x1b" in text:
        text = _ESCAPE.sub(b"", _STATUS.sub(b"", text))
    return _STAMP.sub(b"", text) if b"Z " in text else text


def check_files(folder: Path, line_bytes: int, blocks: int) -> None:
    """Raise RunError unless each worker has a file with exactly what it wrote."""
    files = {int(path.parent.name): path for path in folder.rglob("stdout.log")}
    for rank in range(WORKERS):
        whole = b"".join(lines(rank, line_bytes)) * blocks
        if rank not in files or files[rank].read_bytes() != whole:
            raise RunError(f"the log file of rank {rank} is not what it wrote")


class OutputBenchmark:
    """Collects samples of every case."""

    def __init__(self, contenders: Sequence[Launcher], amount: int, timeout: float) -> None:
        self._launchers = {launcher.name: launcher for launcher in contenders}
        self._cases = [case for case in cases() if case.launcher in self._launchers]
        self._amount, self._timeout = amount, timeout
        self.samples: dict[tuple[str, str], list[Sample]] = {}
        """Samples by the names of case and launcher."""

    def round(self, attempts: Attempts) -> None:
        """Run each case once."""
        for case in self._cases:
            sample = attempts.take(f"{case.launcher}, {case.name}", partial(self._measure, case))
            if sample is not None:
                self.samples.setdefault((case.name, case.launcher), []).append(sample)

    def _measure(self, case: Case, folder: Path) -> Sample:
        launcher = self._launchers[case.launcher]
        return measure(case, launcher, folder, self._amount, self._timeout)


Samples = Mapping[tuple[str, str], Sequence[Sample]]


def report(samples: Samples) -> str:
    """Return a table with a line per case and launcher.

    It has medians, the ratio to torchrun, the largest peak and the sums of lines.
    """
    header = ["output", "launcher", "MB/s", "/torchrun", "agent peak MiB", "agent CPU s/GB"]
    return render([*header, "lost lines", "wrong lines"], [_line(samples, *key) for key in samples])


def _line(samples: Samples, name: str, launcher: str) -> list[str]:
    taken = samples[name, launcher]
    rate, base = rate_of(samples, name, launcher), rate_of(samples, name, TORCHRUN)
    return [
        name,
        launcher,
        f"{rate:.0f}",
        f"{rate / base:.2f}" if rate and base else MISSING,
        f"{max(sample.agent_peak_mib for sample in taken):.1f}",
        f"{statistics.median(sample.agent_seconds_per_gb for sample in taken):.2f}",
        str(sum(sample.lost for sample in taken)),
        str(sum(sample.wrong for sample in taken)),
    ]


def rate_of(samples: Samples, name: str, launcher: str) -> float | None:
    """Return the median rate of one case; None if it was not measured."""
    rates = [sample.megabytes_per_second for sample in samples.get((name, launcher), ())]
    return statistics.median(rates) if rates else None
