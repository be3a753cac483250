"""Kills one of four workers amid calls of all to all: `rpc_deaths.py DEATHS`, run by rpc.py.

Prints a line of JSON for each death: the time from the SIGKILL until the last caller was informed,
    the time of the slowest survivor's shutdown, how many calls were right, and what was wrong.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import threading
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

import torsh_runtime.rpc as rpc
from benchmarks.spawn import free_port
from torsh_runtime import PeerLost

WORKERS = 4
_PATIENCE = 60.0
_BEFORE, _AFTER = (0.1, 0.2), 0.2
"""Seconds of calls before the death, chosen at random, and after it."""


def double(array: Any) -> Any:
    return 2 * array


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def through(to: str, number: int) -> int:
    """Make a call within a call."""
    return rpc.rpc_sync(to, abs, args=(-number,))


class Caller:
    """Calls one other worker from a thread of its own."""

    def __init__(self, rank: int, to: int, victim: int, end: threading.Event, seed: int) -> None:
        self.to, self._victim, self._end = to, f"worker{victim}", end
        self._others = [each for each in range(WORKERS) if each not in (rank, to)]
        self._random = random.Random(seed * WORKERS * WORKERS + rank * WORKERS + to)
        self.right = 0
        self.told: float | None = None
        self.wrong: list[str] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self._end.is_set() and self.told is None:
            to, third = f"worker{self.to}", f"worker{self._random.choice(self._others)}"
            through_victim = third == self._victim
            try:
                self._call(to, third)
                self.right += 1
            except PeerLost as error:
                self._lost(error, to, through_victim)
            except BaseException as error:
                self.wrong.append(f"call to {to}: {error!r}")
                return

    def _call(self, to: str, third: str) -> None:
        kind, number = self._random.randrange(4), self._random.randrange(1, 1000)
        if kind == 0:
            assert rpc.rpc_sync(to, abs, args=(-number,)) == number
        elif kind == 1:
            array = np.full(self._random.choice((10, 100_000)), number)
            assert (rpc.rpc_sync(to, double, args=(array,)) == 2 * number).all()
        elif kind == 2:
            assert rpc.rpc_sync(to, sleep, args=(number * 1e-5,)) == number * 1e-5
        else:
            assert rpc.rpc_sync(to, through, args=(third, number)) == number

    def _lost(self, error: PeerLost, to: str, through_victim: bool) -> None:
        if self._victim not in str(error) or not (to == self._victim or through_victim):
            self.wrong.append(f"call to {to}: {error!r}")
        if to == self._victim:
            self.told = time.monotonic()


def be_worker(rank: int, victim: int, seed: int, pipe: Connection) -> None:
    """Run one of the four workers. The parent says when to start and when to stop."""
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=WORKERS)
    pipe.send("ready")
    pipe.recv()
    end = threading.Event()
    callers = [Caller(rank, to, victim, end, seed) for to in range(WORKERS) if to != rank]
    pipe.recv()
    end.set()
    for caller in callers:
        caller.thread.join(_PATIENCE)
    wrong = [text for caller in callers for text in caller.wrong]
    wrong += [f"a call hangs: {caller.to}" for caller in callers if caller.thread.is_alive()]
    begin = time.monotonic()
    try:
        rpc.shutdown()
    except PeerLost as error:
        if f"worker{victim}" not in str(error):
            wrong.append(f"shutdown: {error!r}")
    took = time.monotonic() - begin
    told = [caller.told for caller in callers if caller.told is not None]
    right = sum(caller.right for caller in callers)
    pipe.send({"told": told, "shutdown": took, "right": right, "wrong": wrong})


def die(seed: int) -> dict[str, Any]:
    """Kill one worker, and return what the others noticed."""
    chance = random.Random(seed)
    victim, port = chance.randrange(WORKERS), free_port()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    context = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        pipes, workers = [], []
        for rank in range(WORKERS):
            ours, theirs = context.Pipe()
            worker = context.Process(target=be_worker, args=(rank, victim, seed, theirs))
            worker.start()
            theirs.close()
            stack.callback(worker.join)
            stack.callback(worker.kill)
            pipes.append(stack.enter_context(ours))
            workers.append(worker)
        for pipe in pipes:
            _receive(pipe)
        for pipe in pipes:
            pipe.send("begin")
        time.sleep(chance.uniform(*_BEFORE))
        killed = time.monotonic()
        workers[victim].kill()
        time.sleep(_AFTER)
        survivors = [pipe for rank, pipe in enumerate(pipes) if rank != victim]
        for pipe in survivors:
            pipe.send("end")
        return account(victim, killed, [_receive(pipe) for pipe in survivors])


def account(victim: int, killed: float, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of one death. It is also wrong if a survivor was not informed."""
    times = [told - killed for each in found for told in each["told"]]
    wrong = [text for each in found for text in each["wrong"]]
    if len(times) < WORKERS - 1:
        wrong.append(f"only {len(times)} of {WORKERS - 1} survivors were told")
    return {
        "victim": victim,
        "told": max(times, default=None),
        "shutdown": max(each["shutdown"] for each in found),
        "right": sum(each["right"] for each in found),
        "wrong": wrong,
    }


def _receive(pipe: Connection) -> Any:
    """Return a worker's message. Raises RuntimeError if it ended or does not answer."""
    try:
        if pipe.poll(_PATIENCE):
            return pipe.recv()
    except EOFError:
        pass
    raise RuntimeError("a worker ended, or does not answer")


def main() -> None:
    for seed in range(int(sys.argv[1])):
        print(json.dumps(die(seed)), flush=True)


if __name__ == "__main__":
    main()
