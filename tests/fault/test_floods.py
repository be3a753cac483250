"""Another user of this host floods all that listens there: who has proved itself is served on."""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support.floods import MANNERS, flood
from support.launcher import Launcher
from support.nodes import Job, Node
from support.other_users import Stranger, needs_root, stranger
from support.ports import free_port

from torsh_runtime.backends.native.connections import Keys, Listeners, connect_all
from torsh_runtime.backends.native.network import Network
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore

pytestmark = needs_root
GUARD = 60.0
SECRET = b"0f1e2d3c4b5a69788796a5b4c3d2e1f0"
NUMBER = 3500
"""Connections to each port: for longer than a silent node is waited for."""
WORKER = """
import os, pathlib, time
print("begun", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not pathlib.Path({end!r}).exists():
    time.sleep(0.05)
"""

LISTENING = "0A"
each_manner = pytest.mark.parametrize("manner", MANNERS)


@contextmanager
def flooded(ports: list[int], manner: str, number: int = NUMBER) -> Iterator[Stranger]:
    """From the time that the flood is under way; it says how many connections came about."""

    def body(pipe: Connection) -> int:
        return flood(ports, manner, number, lambda: pipe.send(("said", "begun")))

    with stranger(body) as other:
        assert other.says() == "begun"
        yield other


def ports_of(node: Node) -> list[int]:
    """Where the agent listens, by TCP over IPv4."""
    held = set()
    for descriptor in Path(f"/proc/{node.process.pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            held.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        int(fields[1].rpartition(":")[2], 16)
        for fields in table
        if fields[3] == LISTENING and fields[9] in held
    ]


@pytest.mark.parametrize(
    ("manner", "secret"),
    [("data", SECRET), ("reset", SECRET), ("half", SECRET), ("reset", b"")],
    ids=["data", "reset", "half", "reset, no secret"],
)
def test_a_job_begins_and_keeps_its_round(
    manner: str, secret: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if secret:
        monkeypatch.setenv("TORSH_SECRET", secret.decode())
    script, end = tmp_path / "worker.py", tmp_path / "end"
    script.write_text(WORKER.format(end=str(end)))
    probe = free_port()
    with Launcher(tmp_path) as launcher, Job.over_tcp(launcher, "2") as job:
        first = job.start(f"--metrics-port=127.0.0.1:{probe}", str(script))
        first.wait_for("waiting for the job's nodes")
        with flooded(ports_of(first), manner) as early:
            second = job.start(str(script))
            for rank, node in enumerate((first, second)):
                node.wait_for(f"begun {rank} of 2", GUARD)
            early.says()
        with flooded(ports_of(first) + ports_of(second), manner) as later:
            with urllib.request.urlopen(f"http://127.0.0.1:{probe}/healthz", timeout=GUARD) as got:
                assert json.load(got)["round"] == 0
            assert later.says() > NUMBER
        end.touch()
        for rank, node in enumerate((first, second)):
            code, output = node.end()
            assert code == 0, output
            assert output.count("begun") == output.count(f"begun {rank} of 2") == 1, output


@each_manner
def test_who_comes_meanwhile_is_served(manner: str) -> None:
    """As the store of a job that is started by hand, or of a static one."""
    with HostedStore.start("tcp:127.0.0.1:0", SECRET) as hosted:
        port = int(hosted.endpoint.rpartition(":")[2])
        with flooded([port], manner) as other:
            for number in range(20):
                with StoreClient.connect(hosted.endpoint, SECRET, GUARD) as client:
                    assert client.put("own", b"") == number + 1
            assert other.says() > 0


@each_manner
def test_ranks_link_up(manner: str) -> None:
    network, keys = Network(secret=SECRET, master="127.0.0.1"), Keys(SECRET, "g")
    linked: dict[int, Any] = {}

    def link(rank: int, doors: Listeners, contacts: dict[int, Any]) -> None:
        linked[rank] = connect_all(rank, doors, contacts, keys, GUARD, lambda: None)

    with Listeners.opened(network) as lower, Listeners.opened(network) as higher:
        port = lower.contact.addresses[-1][1]
        with flooded([port], manner):
            waiting = threading.Thread(target=link, args=(0, lower, {1: higher.contact}))
            waiting.start()
            link(1, higher, {0: lower.contact})
            waiting.join(GUARD)
    for lanes in (linked[0][1], linked[1][0]):
        assert len(lanes) == lower.contact.streams + 1
        for lane in lanes:
            os.close(lane)
