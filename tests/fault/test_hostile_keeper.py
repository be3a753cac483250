"""Requests that make no sense, put together by chance: the keeper refuses them by name, starts
nothing, and neither crashes nor hangs.

A short form runs with the other tests; `--soak` runs some twenty times as many, with a keeper that
was compiled with the sanitizers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.processes import marked, soon

import torshrun
from torshrun.workers.keeper import find_keeper

ALL = 0xFFFFFFFF
WORD = (0, 1, 2, 7, 64, 4096, 2**16, 2**31 - 1, 2**31, ALL)
NULL = os.open(os.devnull, os.O_RDWR)
REFUSED = (errno.EBADMSG, b"r")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


HEAD = struct.Struct("=6I")


@dataclass
class Spawn:
    """A request to start a program, which makes a file, and what is to become of it."""

    number: int
    strings: list[bytes]
    argc: int
    envc: int
    cpus: bytes = b""
    announced_cpus: int = 0
    announced_fds: int = 0
    fds: list[int] = field(default_factory=list)
    shares_session: int = 0
    tail: bytes = b""
    """What follows the last string."""

    @property
    def body(self) -> bytes:
        head = (self.number, self.announced_fds, self.argc, self.envc, self.announced_cpus)
        strings = b"".join(string + b"\0" for string in self.strings)
        return b"S" + HEAD.pack(*head, self.shares_session) + self.cpus + strings + self.tail

    @property
    def makes_sense(self) -> bool:
        """Whether a strict reader finds exactly what the head announces."""
        rest = self.body[1 + HEAD.size :]
        if self.argc == 0 or self.announced_cpus > len(rest) or self.announced_fds != len(self.fds):
            return False
        words = rest[self.announced_cpus :].split(b"\0")
        return words[-1] == b"" and len(words) - 1 == 1 + self.argc + self.envc


class Fuzzer:
    """Talks to one keeper after the other."""

    def __init__(self, folder: Path, keeper: str, seed: int) -> None:
        self.folder = folder
        self.keeper = keeper
        self.chance = random.Random(seed)
        self.mark = f"MARK={os.urandom(8).hex()}".encode()
        self.said = folder / "said"
        self._number = 0

    def play(self, talk: Callable[[socket.socket], None]) -> None:
        """One keeper's life, until nobody talks to it any more."""
        mine, theirs = socket.socketpair()
        with mine, theirs, self.said.open("ab") as said:
            process = subprocess.Popen(
                [self.keeper, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                cwd=self.folder,  # where `touch` makes files of what was its environment
                env={"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
                stderr=said,
            )
            theirs.close()
            try:
                talk(mine)
                mine.close()
                code = process.wait(timeout=60)
            finally:
                process.kill()
                process.wait(timeout=10)
        assert code == 0, self.said.read_text()
        assert soon(lambda: not marked(self.mark.decode()))

    def ask(self, connection: socket.socket) -> None:
        """Requests by the grammar and beside it, and perhaps nonsense in the end."""
        connection.settimeout(60)
        spawns = [self._spawn() for _ in range(self.chance.randrange(1, 12))]
        for spawn in spawns:
            self._send(connection, spawn.body, spawn.fds)
            if self.chance.random() < 0.3:
                self._send(connection, self._harmless(), [])
        answers = _answers(connection, len(spawns))
        for spawn in spawns:
            kind, reason = answers[spawn.number]
            started = (self.folder / str(spawn.number)).exists()
            if spawn.makes_sense:
                assert reason != REFUSED, spawn
            else:
                assert (kind, started) == (b"f", False), spawn
                assert reason in (REFUSED, (errno.EMFILE, b"h")), spawn
        if self.chance.random() < 0.7:
            self._send_nonsense(connection)

    def babble(self, connection: socket.socket) -> None:
        """Any bytes: the keeper ends, or waits for more."""
        with contextlib.suppress(OSError):
            connection.sendall(self.chance.randbytes(self.chance.randrange(1, 5000)))

    def _spawn(self) -> Spawn:
        """Half of them as they should be, half spoilt in one way or in two."""
        self._number += 1
        target = os.fsencode(self.folder / str(self._number))
        argv = [b"/bin/touch", target]
        envp = [self.mark, *(b"V%d=x" % n for n in range(self.chance.randrange(4)))]
        spawn = Spawn(self._number, [b"", *argv, *envp], len(argv), len(envp))
        spawn.shares_session = self.chance.choice((0, 1, 2**32 - 1))
        if self.chance.random() < 0.3:
            spawn.fds = [NULL] * self.chance.randrange(1, 4)
            spawn.announced_fds = len(spawn.fds)
        if self.chance.random() < 0.3:
            spawn.cpus = struct.pack("=Q", 2**64 - 1)
            spawn.announced_cpus = len(spawn.cpus)
        for _ in range(self.chance.choice((0, 0, 1, 2))):
            self.chance.choice((_miscount, _truncate, _append, _inject, _misplace))(
                spawn, self.chance
            )
        return spawn

    def _harmless(self) -> bytes:
        """Well formed, and without an answer."""
        words = self.chance.choice(WORD), self.chance.choice((0, 10, 12, 65, 2**31 - 1))
        return self.chance.choice(
            (
                b"K" + struct.pack("=II", 2**30 + words[0] % 2**20, words[1]),
                b"N" + struct.pack("=II", 2**30 + words[0] % 2**20, words[1]),
                b"A" + struct.pack("=QI", 0, self.chance.randrange(2)),
            )
        )

    def _send(self, connection: socket.socket, frame: bytes, fds: list[int]) -> None:
        data = struct.pack("=I", len(frame)) + frame
        cut = self.chance.choice((len(data), 1, 4, 5, self.chance.randrange(1, len(data) + 1)))
        socket.send_fds(connection, [data[:cut]], fds)
        connection.sendall(data[cut:])

    def _send_nonsense(self, connection: socket.socket) -> None:
        """What the keeper can but end for, or wait for the rest of."""
        body = self.chance.randbytes(self.chance.choice((0, 1, 8, 12, 20, 21, 300)))
        kind = self.chance.choice((b"S", b"K", b"A", b"W", b"?", b"\0", b""))
        frame = kind + body
        length = self.chance.choice((len(frame), len(frame), self.chance.choice(WORD)))
        with contextlib.suppress(OSError):
            connection.sendall(struct.pack("=I", length) + frame)


def _miscount(spawn: Spawn, chance: random.Random) -> None:
    name = chance.choice(("argc", "envc"))
    count = getattr(spawn, name)
    setattr(spawn, name, chance.choice((count - 1, count + 1, chance.choice(WORD))) & ALL)


def _truncate(spawn: Spawn, chance: random.Random) -> None:
    del spawn.strings[chance.randrange(len(spawn.strings) + 1) :]


def _append(spawn: Spawn, chance: random.Random) -> None:
    spawn.tail += chance.choice((b"\0", b"x", b"x=y\0", b"\0\0", chance.randbytes(9)))


def _inject(spawn: Spawn, chance: random.Random) -> None:
    if spawn.strings:
        at = chance.randrange(len(spawn.strings))
        spawn.strings[at] += chance.choice((b"\0", b"\0BROWSER=/bin/false", b"\0\0"))


def _misplace(spawn: Spawn, chance: random.Random) -> None:
    if chance.random() < 0.5:
        spawn.announced_cpus = chance.choice(WORD)
    else:
        spawn.announced_fds = chance.choice((*WORD, 3, 9))
        # Descriptors that are announced and never sent would be taken from the next request's.
        spawn.fds = (spawn.fds or [NULL]) if spawn.announced_fds else []


def _answers(connection: socket.socket, count: int) -> dict[int, tuple[bytes, object]]:
    """The first answer to each of so many requests."""
    found: dict[int, tuple[bytes, object]] = {}
    data = b""
    while len(found) < count:
        more = connection.recv(65536)
        assert more, "the keeper ended"
        data += more
        while len(data) >= 4 and len(data) >= (end := 4 + struct.unpack_from("=I", data)[0]):
            kind, body, data = data[4:5], data[5:end], data[end:]
            number = struct.unpack_from("=I", body)[0]
            reason = struct.unpack("=ic", body[4:]) if kind == b"f" else None
            found.setdefault(number, (kind, reason))
    return found


@pytest.fixture(scope="module")
def keeper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its path; in the long form it was compiled with sanitizers."""
    compiler = shutil.which("cc")
    source = Path(torshrun.__file__).parent / "keeper" / "keeper.c"
    source = source if source.exists() else Path(__file__).parents[2] / "torshrun/keeper/keeper.c"
    if not request.config.getoption("--soak") or compiler is None:
        return find_keeper()
    path = tmp_path_factory.mktemp("keeper") / "torsh-keeper"
    subprocess.run([compiler, *SANITIZED, "-o", str(path), str(source)], check=True, timeout=120)
    return str(path)


@pytest.mark.parametrize("how", ["ask", "babble"])
def test_it_refuses_what_makes_no_sense_and_survives(
    tmp_path: Path, keeper: str, request: pytest.FixtureRequest, how: str
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    fuzzer = Fuzzer(tmp_path, keeper, seed)
    for _ in range(500 if request.config.getoption("--soak") else 30):
        fuzzer.play(getattr(fuzzer, how))
