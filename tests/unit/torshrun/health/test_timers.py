"""File timers: requests in a real pipe, good and bad, and real processes that they are about."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.health import timers
from torshrun.health.timers import TIMER_FILE, Timer, TimerServer, make_pipe, parse

PAST = 1.0
PATIENCE = 20


def request(pid: int, end: float = PAST, scope: str = "s", signo: int = 9) -> bytes:
    facts = {"version": 1, "pid": pid, "scope_id": scope, "expiration_time": end, "signal": signo}
    return json.dumps(facts).encode() + b"\n"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process
        process.kill()


class Served:
    """A server in a loop of the test's own, whose worker is rank 3."""

    def __init__(self, path: Path, worker: int, expired: list[tuple[int, str]]) -> None:
        self.told = asyncio.Event()

        def tell(rank: int, finding: str) -> None:
            expired.append((rank, finding))
            self.told.set()

        make_pipe({TIMER_FILE: str(path)}, "")
        self.server = TimerServer(str(path), asyncio.get_running_loop(), lambda: {worker: 3}, tell)
        self.pipe = os.open(path, os.O_WRONLY)

    async def write(self, data: bytes) -> None:
        """Until the server has read it."""
        for begin in range(0, len(data), 4096):
            os.write(self.pipe, data[begin : begin + 4096])
            reader = select.poll()
            reader.register(self.server._pipe, select.POLLIN)
            while reader.poll(0):  # noqa: ASYNC110  (the server is not to tell)
                await asyncio.sleep(0)


@pytest.fixture
def serve(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> Callable[[Callable[[Served], Awaitable[None]]], list[tuple[int, str]]]:
    def run(body: Callable[[Served], Awaitable[None]]) -> list[tuple[int, str]]:
        expired: list[tuple[int, str]] = []

        async def main() -> None:
            served = Served(tmp_path / "pipe", child.pid, expired)
            try:
                await asyncio.wait_for(body(served), PATIENCE)
            finally:
                os.close(served.pipe)
                served.server.close()

        asyncio.run(main())
        return expired

    return run


def test_a_timer_that_runs_out_kills_its_process(serve: Any, child: Any) -> None:
    async def body(served: Served) -> None:
        await served.write(request(child.pid, time.time() + 0.1, "train.py#12\x1b[2J"))
        await served.told.wait()

    assert serve(body) == [(3, "its timer train.py#12 ran out")]
    assert child.wait(PATIENCE) == -signal.SIGKILL


def test_the_signal_is_the_workers_own_choice(serve: Any, child: Any) -> None:
    async def body(served: Served) -> None:
        await served.write(request(child.pid, PAST, "a", 0) + request(child.pid, PAST, "b", 15))
        await served.told.wait()

    assert serve(body) == [(3, "its timer b ran out")]
    assert child.wait(PATIENCE) == -signal.SIGTERM


def test_what_is_given_back_or_no_workers_does_nothing(serve: Any, child: Any) -> None:
    """The last one, which is a worker's, runs out after all that could have."""

    async def body(served: Served) -> None:
        soon = time.time() + 0.2
        await served.write(
            request(child.pid, soon, "back", 9)
            + request(child.pid, -1, "back", 0)
            + request(os.getpid(), PAST, "a stranger's")
            + request(1, PAST, "init's")
            + request(2**31 - 2, PAST, "nobody's")
            + request(-child.pid, PAST, "a group's")
            + request(0, PAST, "everybody's")
            + request(child.pid, soon + 0.1, "last", 15)
        )
        await served.told.wait()

    assert serve(body) == [(3, "its timer last ran out")]
    assert child.wait(PATIENCE) == -signal.SIGTERM


def test_timers_of_an_earlier_round_are_forgotten(serve: Any, child: Any) -> None:
    async def body(served: Served) -> None:
        await served.write(request(child.pid, time.time() + 0.05, "old"))
        served.server.forget()
        await served.write(request(child.pid, time.time() + 0.1, "new"))
        await served.told.wait()

    assert serve(body) == [(3, "its timer new ran out")]


JUNK = {
    "no JSON": b"x",
    "nothing": b"",
    "no object": b"[1]",
    "empty": b"{}",
    "deep": b"[" * 4000,
    "no UTF-8": b"\xff\xfe",
    "text for a pid": b'{"pid":"1","scope_id":"s","expiration_time":1,"signal":9}',
    "a truth": b'{"pid":true,"scope_id":"s","expiration_time":1,"signal":9}',
    "no scope": b'{"pid":1,"scope_id":null,"expiration_time":1,"signal":9}',
    "no number": b'{"pid":1,"scope_id":"s","expiration_time":NaN,"signal":9}',
    "for ever": b'{"pid":1,"scope_id":"s","expiration_time":1e400,"signal":9}',
    "many digits": b'{"pid":1,"scope_id":"s","expiration_time":' + b"9" * 3000 + b',"signal":9}',
    "no signal": b'{"pid":1,"scope_id":"s","expiration_time":1,"signal":' + b"9" * 30 + b"}",
    "half a signal": b'{"pid":1,"scope_id":"s","expiration_time":1,"signal":9.5}',
}


@pytest.mark.parametrize("line", JUNK.values(), ids=JUNK)
def test_junk_is_no_request(line: bytes) -> None:
    assert parse(line) is None


def test_after_junk_requests_count_again(serve: Any, child: Any) -> None:
    async def body(served: Served) -> None:
        await served.write(b"".join(line + b"\n" for line in JUNK.values()))
        await served.write(b"x" * 300_000 + b"\n")
        await served.write(request(child.pid))
        await served.told.wait()

    assert serve(body) == [(3, "its timer s ran out")]


def test_there_are_not_more_than_so_many(
    serve: Any, child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "MOST_TIMERS", 2)

    async def body(served: Served) -> None:
        late = time.time() + 600
        await served.write(b"".join(request(child.pid, late, str(number)) for number in range(5)))
        assert len(served.server._timers) == 2
        await served.write(request(child.pid, PAST, "0"))  # it is there already
        await served.told.wait()

    assert serve(body) == [(3, "its timer 0 ran out")]


def test_a_request_as_torch_writes_it() -> None:
    assert parse(request(7, 8.5, "t.py#1", 9)) == Timer(7, "t.py#1", 8.5, 9)


def test_where_the_pipe_is(tmp_path: Path) -> None:
    assert make_pipe({}, str(tmp_path)) == f"{tmp_path}/timers"
    named = tmp_path / "named"
    os.mkfifo(named)
    assert make_pipe({TIMER_FILE: str(named)}, "") == str(named)
    assert named.stat().st_mode & 0o777 == 0o600
    outer = {TIMER_FILE: str(named), "TORCHELASTIC_RUN_ID": "outer"}
    (tmp_path / "inner").mkdir()
    assert make_pipe(outer, f"{tmp_path}/inner") == f"{tmp_path}/inner/timers"


def test_no_file_is_taken_for_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError, match=r"File exists.*leave it unset"):
        make_pipe({TIMER_FILE: f"{tmp_path}/file"}, "")
    assert (tmp_path / "file").read_text() == "precious"
