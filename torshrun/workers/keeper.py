"""The agent's end of the keeper: what to ask of it, and what it reports.

The frames are described at the top of keeper/keeper.c. Nothing here blocks, except close().
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torshrun.keeper
from torsh_runtime.errors import BackendUnavailable

ALL = 0xFFFFFFFF
"""Stands for every worker where a worker's id is asked for."""

_LENGTH = struct.Struct("=I")
_TWO = struct.Struct("=II")
_STAGES = {"k": "fork", "d": "chdir", "x": "exec", "h": "file descriptors"}


@dataclass(frozen=True, slots=True)
class Spawned:
    """The worker's program is running."""

    worker_id: int
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The worker's program could not be started. No Exited follows."""

    worker_id: int
    errno: int
    stage: str
    """What failed: "fork", "chdir", "exec" or "file descriptors"."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The worker's process has ended."""

    worker_id: int
    status: int
    """As waitpid gives it."""
    peak_rss_kib: int


@dataclass(frozen=True, slots=True)
class Swept:
    """A sweep is over: all of the keeper's descendants have ended, but for the unkillable."""

    tag: int
    ended: int
    """Processes that ended meanwhile."""
    unkillable: tuple[int, ...]
    """Pids that outlived SIGKILL until the sweep's bound."""


@dataclass(frozen=True, slots=True)
class DeadManFired:
    """The dead-man timer ran out, and all workers have been killed."""

    workers: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The keeper is gone. Nothing more will be reported."""


Report = Spawned | SpawnFailed | Exited | Swept | DeadManFired | Lost


def find_keeper() -> str:
    """Path of the keeper's executable. Raises BackendUnavailable when it was not built."""
    installed = [f"{folder}/torshrun/keeper" for folder in sys.path if folder]
    for folder in [*torshrun.keeper.__path__, *installed]:  # an editable install is in two places
        path = f"{folder}/torsh-keeper"
        if os.access(path, os.X_OK):
            return path
    raise BackendUnavailable(
        "the compiled keeper (torsh-keeper)",
        "It is built when the package is installed: run `pip install .` in its source.",
    )


class Keeper:
    """A running keeper. Its lifetime bounds that of all workers: closing it kills them."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._socket = connection
        self._incoming = bytearray()
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._lost = False

    @classmethod
    def start(cls, scratch: str = "") -> Keeper:
        """Start a keeper for this process. It removes the directory `scratch`, if one is named,
        when this process has ended or has closed the keeper.
        """
        path = find_keeper()
        mine, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            mine.setblocking(False)
            pid = os.posix_spawn(
                path,
                ["torsh-keeper", str(theirs.fileno()), str(os.getpid())],
                {**os.environ, "TORSH_KEEPER_SCRATCH": scratch} if scratch else os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)
                ],
                setsid=True,
                setsigmask=(),
            )
        return cls(pid, mine)

    def fileno(self) -> int:
        """The descriptor that becomes readable when receive() has something to give."""
        return self._socket.fileno()

    def spawn(
        self,
        worker_id: int,
        argv: Sequence[str],
        environ: Mapping[str, str],
        cwd: str,
        fds: Sequence[int],
    ) -> None:
        """Start a program; argv[0] is its path. `fds` become its descriptors 0, 1, 2, .. and are
        duplicated at once: the caller may close them. Answered by Spawned or SpawnFailed.
        """
        pairs = [f"{name}={value}" for name, value in environ.items()]
        strings = b"".join(os.fsencode(text) + b"\0" for text in [cwd, *argv, *pairs])
        head = struct.pack("=IIII", worker_id, len(fds), len(argv), len(pairs))
        self._send(b"S" + head + strings, fds)

    def signal(self, worker_id: int, signo: int) -> None:
        """Send a signal to the process group of one worker, or of ALL that are alive."""
        self._send(b"K" + _TWO.pack(worker_id, signo))

    def sweep(self, tag: int, bound: float) -> None:
        """SIGKILL every worker and everything they left behind. Answered by Swept, within `bound`
        seconds, after the Exited of each worker.
        """
        self._send(b"W" + _TWO.pack(tag, int(bound * 1000)))

    def arm_dead_man(self, seconds: float) -> None:
        """Kill all workers `seconds` from now unless armed again before; 0 disarms."""
        deadline = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(seconds * 1e9)
        self._send(b"A" + struct.pack("=Q", deadline if seconds else 0))

    def flush(self) -> bool:
        """Send what is waiting, as far as possible; whether nothing waits any more."""
        while self._outgoing and not self._lost:
            data, fds = self._outgoing[0]
            try:
                sent = socket.send_fds(self._socket, [data], fds, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            except OSError:
                return True  # receive() will tell that the keeper is lost
            self._outgoing.popleft()
            _close_all(fds)
            if sent < len(data):
                self._outgoing.appendleft((data[sent:], []))
        return True

    def receive(self) -> list[Report]:
        """The reports that have come, in order; none if there are none yet."""
        if self._lost:
            return []
        self._lost = not self._read()
        reports = self._reports()
        return [*reports, Lost()] if self._lost else reports

    def close(self, timeout: float) -> bool:
        """Let the keeper kill what is left, remove the scratch directory and exit. Whether it
        had ended within `timeout` seconds.
        """
        self._socket.close()
        self._lost = True
        while self._outgoing:
            _close_all(self._outgoing.popleft()[1])
        return _wait_for(self.pid, timeout)

    def _send(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        copies = [os.dup(fd) for fd in fds]
        self._outgoing.append((_LENGTH.pack(len(frame)) + frame, copies))
        self.flush()

    def _read(self) -> bool:
        try:
            while data := self._socket.recv(65536):
                self._incoming += data
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _reports(self) -> list[Report]:
        reports: list[Report] = []
        while len(self._incoming) >= 4:
            (length,) = _LENGTH.unpack_from(self._incoming)
            if len(self._incoming) < 4 + length:
                break
            reports.append(_decode(bytes(self._incoming[4 : 4 + length])))
            del self._incoming[: 4 + length]
        return reports


def _decode(frame: bytes) -> Report:
    kind, body = frame[:1], frame[1:]
    if kind == b"p":
        return Spawned(*struct.unpack("=Ii", body))
    if kind == b"f":
        worker_id, errno, stage = struct.unpack("=IiB", body)
        return SpawnFailed(worker_id, errno, _STAGES[chr(stage)])
    if kind == b"e":
        return Exited(*struct.unpack("=IiQ", body))
    if kind == b"d":
        return DeadManFired(*struct.unpack("=I", body))
    tag, ended, count = struct.unpack_from("=III", body)
    return Swept(tag, ended, struct.unpack_from(f"={count}i", body, 12))


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _wait_for(pid: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    pause = 0.0005
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make orphaned descendants children of this process, so that kill_descendants finds them."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(bound: float) -> tuple[int, ...]:
    """SIGKILL this process's children, and theirs as they become its own, until none is left or
    `bound` seconds have passed. Returns the pids that are left.
    """
    deadline = time.monotonic() + bound
    while children := _children():
        for pid in children:
            _kill(pid)
        if not _reap_all():
            return ()
        if time.monotonic() >= deadline:
            return children
        time.sleep(0.005)
    return ()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap_all() -> bool:
    """Reap what has ended; whether children are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def _children() -> tuple[int, ...]:
    pids: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        try:
            pids += map(int, (thread / "children").read_text().split())
        except FileNotFoundError:
            continue
    return tuple(pids)
