"""The agent's end of the keeper: what to ask of it, and what it reports.

The frames are described at the top of keeper/keeper.c. Nothing here blocks, except close(), and
start() while the keeper makes itself a namespace.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import torshrun.keeper
from torsh_runtime.errors import BackendUnavailable, ConfigError
from torsh_runtime.framing import MACHINE_ORDER, Frames, frame
from torshrun.workers.processes import kill, named, wait_for
from torshrun.workers.spec import encoded, encoded_environment

ALL = 0xFFFFFFFF
"""Id that stands for all workers."""
PING, LEFTOVERS, ORPHANS = 1, 2, 3
"""Tags of ask_left(), which say why the keeper is asked."""

_TWO = struct.Struct("=II")
_INSIDE = struct.Struct("=iib")
_STAGES = {
    "k": "fork",
    "h": "file descriptors",
    "a": "affinity",
    "d": "chdir",
    "x": "exec",
    "r": "request",
    "o": "no child",
}
_START_BOUND = 10.0  # seconds that a keeper may take to make its namespace
_KILL_BOUND = 1.0  # seconds that a keeper may take to die of SIGKILL


class Spawned(NamedTuple):
    """The worker's program is running."""

    worker_id: int
    pid: int
    """Process id as this process sees it, even if the worker is in a namespace."""


class SpawnFailed(NamedTuple):
    """The worker's program could not be started. No Exited follows."""

    worker_id: int
    errno: int
    stage: str
    """Step that failed, one of _STAGES; "request" if the keeper could not decode the request."""


class Ending(NamedTuple):
    """The worker runs nothing more. Exited follows, once its memory is freed and it lets go of
    devices and files.
    """

    worker_id: int
    status: int
    """Status that waitpid will return; never 0."""


class Exited(NamedTuple):
    """The worker's process has ended."""

    worker_id: int
    status: int
    """Status that waitpid returned."""
    peak_rss_kib: int


class Swept(NamedTuple):
    """A sweep is over: all of the keeper's descendants have ended, but for the unkillable."""

    tag: int
    unkillable: tuple[str, ...]
    """Descriptions of the processes that survived SIGKILL until the sweep's bound."""


class Left(NamedTuple):
    """Answers a call of ask_left()."""

    tag: int
    pids: tuple[int, ...]
    """The keeper's children that are not parked, as this process sees them."""


class DeadManFired(NamedTuple):
    """The dead-man timer ran out, and all workers have been killed."""


class Lost(NamedTuple):
    """The keeper is gone. Nothing more will be reported."""


Report = Spawned | SpawnFailed | Ending | Exited | Swept | Left | DeadManFired | Lost


def find_keeper() -> str:
    """Return the path of the keeper's executable. Raise BackendUnavailable if it was not built."""
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
        self.given_up = ""
        """Why this process has killed it; "" if it has not."""
        self._socket = connection
        self._incoming = Frames(order=MACHINE_ORDER)
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._lost = False

    @classmethod
    def start(cls, scratch: str = "", namespace: bool = False) -> Keeper:
        """Start a keeper for this process. It removes the directory `scratch`, if one is named,
        when this process has ended or has closed the keeper. With `namespace` it and all workers
        are in a PID namespace of their own, and none can survive it, even if this process is killed
        at the same moment. Raises ConfigError where none can be made.
        """
        path = find_keeper()
        options = ["namespace"] if namespace else []
        mine, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            mine.setblocking(False)
            pid = os.posix_spawn(
                path,
                ["torsh-keeper", str(theirs.fileno()), str(os.getpid()), *options],
                {**os.environ, "TORSH_KEEPER_SCRATCH": scratch} if scratch else os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)
                ],
                setsid=True,
                setsigmask=(),
            )
        keeper = cls(pid, mine)
        if namespace:
            keeper._await_namespace()
        return keeper

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when receive() has something to return."""
        return self._socket.fileno()

    def spawn(
        self,
        worker_id: int,
        argv: Sequence[str],
        environ: Mapping[str, str],
        cwd: str,
        fds: Sequence[int],
        cpus: Collection[int] = (),
        *,
        parked: bool = False,
        shares_session: bool = False,
    ) -> None:
        """Start a program; argv[0] is its path. Copies of `fds` become its descriptors 0, 1, 2, ..
        It may run on `cpus` only, if there are any. A `parked` one is no worker until take().
        It leads a process group, and a session of its own unless it shares the keeper's. Answered
        by Spawned or SpawnFailed. Raises ConfigError for strings that no program can be started
        with.
        """
        pairs = encoded_environment(environ)
        words = [encoded("the working directory", cwd)]
        words += [encoded(f"argument {number}", word) for number, word in enumerate(argv)]
        mask = _cpu_mask(cpus)
        sizes = (len(fds), len(argv), len(pairs), len(mask))
        head = struct.pack("=IIIIII", worker_id, *sizes, shares_session)
        self._send((b"P" if parked else b"S") + head + mask + b"".join(words + pairs), fds)

    def own(self, worker_id: int, pid: int, outer_pid: int) -> None:
        """Park a process that became a child of the keeper's. `pid` is what the keeper sees,
        `outer_pid` what this process does: they differ in a namespace. Answered by Spawned, or by
        SpawnFailed if it is no child of the keeper's.
        """
        self._send(b"O" + struct.pack("=Iii", worker_id, pid, outer_pid))

    def take(self, worker_id: int) -> None:
        """Turn a parked process into a worker."""
        self._send(b"T" + _TWO.pack(worker_id, 0))

    def signal(self, worker_id: int, signo: int, *, alone: bool = False) -> None:
        """Send a signal to the process group of a worker, or of ALL that are alive and not parked.

        With `alone`, only the processes themselves get it, not their groups.
        """
        self._send((b"N" if alone else b"K") + _TWO.pack(worker_id, signo))

    def sweep(self, tag: int, bound: float) -> None:
        """Kill all workers and what they left with SIGKILL, except parked processes.

        The answer is a Swept, after an Exited for each. `bound` is in seconds.
        """
        self._send(b"W" + _TWO.pack(tag, int(bound * 1000)))

    def ask_left(self, tag: int) -> None:
        """Ask who is left of all that workers started. Answered by Left with this tag."""
        self._send(b"L" + _TWO.pack(tag, 0))

    def give_up(self, reason: str) -> None:
        """Kill the keeper, and by that the workers. `reason` says what it did, for a sentence."""
        self.given_up = reason
        kill(self.pid)

    def arm(self, deadline_ns: int, counts_suspend: bool) -> None:
        """Kill all workers at this time unless armed again before; 0 disarms. The time is one of
        CLOCK_BOOTTIME if time during which the machine is suspended counts, else of
        CLOCK_MONOTONIC, and then a keeper that was stopped itself waits a moment longer.
        """
        self._send(b"A" + struct.pack("=QI", deadline_ns, counts_suspend))

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
        """Return the reports that have come, in order; an empty list if there are none yet."""
        if self._lost:
            return []
        self._lost = not self._read()
        reports = [_decode(taken) for taken in iter(self._incoming.take, None)]
        return [*reports, Lost()] if self._lost else reports

    def close(self, timeout: float) -> bool:
        """Let the keeper kill what is left, remove the scratch directory and exit. Whether it
        had ended within `timeout` seconds; if not, it is killed, and kill_descendants() and the
        directory are left to the caller.
        """
        self._socket.close()
        self._lost = True
        while self._outgoing:
            _close_all(self._outgoing.popleft()[1])
        if wait_for(self.pid, timeout):
            return True
        kill(self.pid)
        wait_for(self.pid, _KILL_BOUND)
        return False

    def _await_namespace(self) -> None:
        """Replace the process that was started by its child in the namespace."""
        self._socket.settimeout(_START_BOUND)
        with suppress(OSError):
            while not (taken := self._incoming.take()) and (data := self._socket.recv(65536)):
                self._incoming.feed(data)
        self._socket.setblocking(False)
        pid, error, stage = _INSIDE.unpack(taken[1:]) if taken else (0, errno.EPIPE, ord("?"))
        if pid:
            wait_for(self.pid, _START_BOUND)
            self.pid = pid
        if stage:
            self.close(_START_BOUND)
            from torshrun.keeper.refusal import explain

            raise ConfigError(explain(chr(stage), error))

    def _send(self, request: bytes, fds: Sequence[int] = ()) -> None:
        copies = [os.dup(fd) for fd in fds]
        self._outgoing.append((frame(request, order=MACHINE_ORDER), copies))
        self.flush()

    def _read(self) -> bool:
        try:
            while data := self._socket.recv(65536):
                self._incoming.feed(data)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def _decode(taken: bytes) -> Report:
    kind, body = taken[:1], taken[1:]
    if kind == b"p":
        return Spawned(*struct.unpack("=Ii", body))
    if kind == b"f":
        worker_id, error, stage = struct.unpack("=IiB", body)
        return SpawnFailed(worker_id, error, _STAGES[chr(stage)])
    if kind == b"x":
        return Ending(*struct.unpack("=Ii", body))
    if kind == b"e":
        return Exited(*struct.unpack("=IiQ", body))
    if kind == b"d":
        return DeadManFired()
    tag, count = _TWO.unpack_from(body)
    pids = struct.unpack_from(f"={count}i", body, _TWO.size)
    return Left(tag, pids) if kind == b"l" else Swept(tag, named(pids))


def _cpu_mask(cpus: Collection[int]) -> bytes:
    """Return a bit mask of the processors, in as many 64-bit words as it takes."""
    bits = sum(1 << cpu for cpu in set(cpus))
    longs = [bits >> shift & (2**64 - 1) for shift in range(0, bits.bit_length(), 64)]
    return struct.pack(f"={len(longs)}Q", *longs)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
