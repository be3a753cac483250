"""Measures the cost of 1,000 nodes for the agent that leads.

    python benchmarks/monitoring_scale.py --bars

This process is the leader's agent, as far as it communicates with other nodes: a real rendezvous
and a real hub. The other agents are real, too. All are in a second process with the store through
which they rendezvous, and connect to this one over TCP. Each sends heartbeats at every interval,
first alone, and then with a summary of the largest size that changes each time. There are no
workers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check
from torsh_runtime.store.base import Store
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.remote import RemoteStore
from torsh_runtime.store.server import StoreServer
from torshrun.rendezvous.agent_server import AgentServer
from torshrun.rendezvous.base import (
    SUMMARY_BYTES,
    JobOver,
    RendezvousEvent,
    RoundFormed,
    Summaries,
)
from torshrun.rendezvous.epoch import Epoch
from torshrun.rendezvous.rejoin import EpochRendezvous, Prepare
from torshrun.rendezvous.settings import NodeFacts, Settings

SECRET = b"the secret of the benchmark"
TTL = 15.0
"""The default ttl in seconds; an interval is a quarter of it."""
DEADLINE = 300.0
"""Seconds within which all agents must have joined."""
_SEGMENT_HEADERS = 14 + 20 + 32
"""Bytes of a segment in addition to its payload: Ethernet, IPv4, TCP with timestamps."""
_LISTENS = 10
_TCP_INFO = struct.Struct("=B119xQQII")
"""The state, bytes acknowledged and received, and segments out and in."""


class Traffic(NamedTuple):
    """Counts what this process's connections have carried so far, both ways."""

    payload: int
    segments: int

    @property
    def nbytes(self) -> int:
        return self.payload + self.segments * _SEGMENT_HEADERS


class Cost(NamedTuple):
    """Holds the cost of the nodes for the leader."""

    agents: int
    summary: int
    """Bytes of a summary."""
    cores: float
    """Number of processors that its agent keeps busy."""
    rate: float
    """Bytes per second for each node, with all headers."""
    told: int
    """Number of nodes whose summary it had at the end."""

    def __str__(self) -> str:
        return (
            f"{self.agents} agents, summaries of {self.summary} bytes: leader {self.cores:.4f} "
            f"cores, {self.rate:.0f} bytes/s per node; {self.told} nodes have told something"
        )

    def checks(self) -> list[Check]:
        return [
            Check("leader, cores", self.cores, 0.2, at_most=True),
            Check("KiB/s per node", self.rate / 1024, 1.0, at_most=True),
            Check("part of the nodes that is heard", self.told / self.agents, 1.0),
        ]


# ---- agents


def _agent(number: int, open_store: Callable[[], Store], settings: Settings) -> EpochRendezvous:
    async def meet() -> Store:
        return open_store()

    return EpochRendezvous(meet, settings, SECRET, _preparing(number))


def _preparing(number: int) -> Prepare:
    async def prepare(_store: Store, epoch: Epoch) -> tuple[NodeFacts, AgentServer]:
        node = f"n{number:05d}"
        hub = await AgentServer(epoch, node, lambda why: None).open("127.0.0.1")
        facts = NodeFacts(
            node=node, host=f"host{number}", address="127.0.0.1", endpoint=hub.endpoint, nproc=8
        )
        return facts, hub

    return prepare


def _settings(count: int, ttl: float) -> Settings:
    return Settings(run_id="scale", min_nodes=count, max_nodes=count, ttl=ttl)


async def members(count: int, ttl: float) -> None:
    """Run the store and, from the first line of stdin on, all agents but the leader's.

    Each line is the size of summaries. The end of stdin ends the process.
    """
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()
    loop.add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
    store = MemoryStore()
    server = StoreServer(store, SECRET)
    print(await server.start("tcp:127.0.0.1:0"), flush=True)
    size, settings = int(await lines.get()), _settings(count, ttl)
    agents = [_agent(number, lambda: store, settings) for number in range(1, count)]
    for agent in agents:
        agent.start(_post_of_member)
    while True:
        for agent in agents:
            agent.tell_leader(os.urandom(size))
        await asyncio.sleep(settings.interval / 2)
        if not lines.empty():
            line = await lines.get()
            if not line:
                os._exit(0)  # nobody is left to notify
            size = int(line)


def _post_of_member(event: RendezvousEvent) -> None:
    if isinstance(event, JobOver):
        print(f"an agent ended: {event.verdict.reason}", file=sys.stderr, flush=True)


class Leader:
    """Runs the leading agent in this process."""

    def __init__(self, count: int, endpoint: str, ttl: float) -> None:
        self.settings = _settings(count, ttl)
        self.formed = asyncio.Event()
        self.leads = asyncio.Event()
        self.told = 0
        self._is_over = False
        self._agent = _agent(0, lambda: RemoteStore(endpoint, SECRET), self.settings)
        self._agent.tell_leader(b"it leads once it is told this")
        self._agent.start(self._post)

    def _post(self, event: RendezvousEvent) -> None:
        if isinstance(event, JobOver) and not self._is_over:
            raise SystemExit(f"the leader ended: {event.verdict.reason}")
        if isinstance(event, RoundFormed):
            self.formed.set()
        elif isinstance(event, Summaries):
            self.leads.set()
            self.told = sum(map(bool, event.by_node.values()))

    async def cost(self, size: int, seconds: float) -> Cost:
        """Return the cost over `seconds` seconds, with summaries of `size` bytes."""
        settle = 2 * self.settings.interval
        self._agent.tell_leader(random.randbytes(size))
        await asyncio.sleep(settle)
        before, cpu, began = traffic(), time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        cores = (time.process_time() - cpu) / took
        after = traffic()
        count = self.settings.max_nodes
        rate = (after.nbytes - before.nbytes) / took / count
        return Cost(count, size, cores, rate, self.told)

    def stop(self) -> None:
        """Ignore later events of the agent."""
        self._is_over = True


def traffic() -> Traffic:
    """Return the traffic by the kernel's count for each connection."""
    payload = segments = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            sock = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:  # not a socket, or closed meanwhile
            continue
        with sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            state, acknowledged, received, out, came = _TCP_INFO.unpack_from(info)
            if state != _LISTENS:
                payload += acknowledged + received
                segments += out + came
    return Traffic(payload, segments)


# ---- both processes


@contextmanager
def _child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def measure(count: int, ttl: float, seconds: float) -> list[Cost]:
    with _child("--as-members", f"--agents={count}", f"--ttl={ttl}") as others:
        assert others.stdin
        assert others.stdout
        leader = Leader(count, others.stdout.readline().strip(), ttl)
        async with asyncio.timeout(DEADLINE):
            await leader.leads.wait()
            print(0, file=others.stdin, flush=True)
            await leader.formed.wait()
        found = []
        for size in (0, SUMMARY_BYTES):
            print(size, file=others.stdin, flush=True)
            found.append(await leader.cost(size, seconds))
        leader.stop()
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--ttl", type=float, default=TTL, help="of nodes, in seconds")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="few agents: shows that it works")
    parser.add_argument("--bars", action="store_true", help="exit status 1 unless all pass")
    parser.add_argument("--as-members", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.as_members:
        asyncio.run(members(options.agents, options.ttl))
        return 0
    quick = (16, 4.0, 2.0)
    asked = quick if options.quick else (options.agents, options.ttl, options.seconds)
    found = asyncio.run(measure(*asked))
    print(*found, sep="\n")
    checks = found[-1].checks() if options.bars else []
    print(*checks, sep="\n", end="\n" if checks else "")
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
