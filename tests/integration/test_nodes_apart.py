"""Jobs of several nodes on several hosts, whose links fail and whose processes are paused."""

from __future__ import annotations

import re
import signal
import time

import pytest
from support.hosts import Host, cut_off, needs_hosts, plug_in_again, plugged
from support.launcher import Launcher
from support.nodes import QUICK, Job, Node
from support.processes import marked, soon

pytestmark = [needs_hosts, pytest.mark.netns]

TTL = 3.0
PORT = 29400
TRAINING = """
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.store.client import StoreClient
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
place = WorkerEnv.from_environ(os.environ)
with StoreClient.connect(place.store_endpoint, bytes.fromhex(place.secret), 20) as store:
    store.put(f"from/{rank}", b"")
    store.wait([f"from/{other}" for other in range(place.world_size)], 20)
print("place", rank, place.world_size, place.master_addr, flush=True)
while not os.path.exists("go"): time.sleep(0.01)
"""


def running(job: Job, hosts: list[Host], script: str) -> list[Node]:
    """A node on each host; the first one serves the store."""
    nodes = [job.start(script, within=hosts[0].command)]
    nodes[0].wait_for("this agent serves the job's store")
    nodes += [job.start(script, within=host.command) for host in hosts[1:]]
    for node in nodes:
        node.wait_for(f"place \\d {len(hosts)} ")
    return nodes


def workers(torshrun: Launcher, node: Node) -> list[int]:
    """Pids of what runs below the node's keeper."""
    tree = marked(torshrun.mark)
    keepers = {pid for pid, parent in tree.items() if parent == node.process.pid}
    return [pid for pid, parent in tree.items() if parent in keepers]


def meet(host: Host) -> tuple[str, ...]:
    where = f"--rdzv-endpoint={host.ipv4}:{PORT}"
    return ("--nnodes=2:3", "--rdzv-backend=tcp", where, f"--rdzv-conf={QUICK}")


def test_a_node_that_is_cut_off_stops_and_joins_again(torshrun: Launcher) -> None:
    script = torshrun.script(TRAINING)
    with plugged(3) as hosts, Job(torshrun, *meet(hosts[0])) as job:
        nodes = running(job, hosts, script)
        (address,) = {re.findall(r"place \d 3 (\S+)", node.output)[0] for node in nodes}
        assert address in {host.ipv4 for host in hosts}
        cut_off(hosts[2])
        cut = time.monotonic()
        assert soon(lambda: not workers(torshrun, nodes[2]), 20)
        assert time.monotonic() - cut < TTL
        for node in nodes[:2]:
            node.wait_for(r"place \d 2 ")
        plug_in_again(hosts[2])
        assert soon(lambda: all(node.output.count(" 3 10.") == 2 for node in nodes), 30), [
            node.output for node in nodes
        ]
        torshrun.make("go")
        assert [node.end()[0] for node in nodes] == [0, 0, 0]


def test_an_agent_that_is_paused_loses_its_workers_and_joins_again(torshrun: Launcher) -> None:
    script = torshrun.script(TRAINING)
    with plugged(3) as hosts, Job(torshrun, *meet(hosts[0])) as job:
        nodes = running(job, hosts, script)
        there = workers(torshrun, nodes[1])
        nodes[1].send(signal.SIGSTOP)
        assert soon(lambda: not set(there) & set(marked(torshrun.mark)), 20)
        for node in (nodes[0], nodes[2]):
            node.wait_for(r"place \d 2 ")
        nodes[1].send(signal.SIGCONT)
        assert soon(lambda: all(node.output.count(" 3 10.") == 2 for node in nodes), 30), [
            node.output for node in nodes
        ]
        torshrun.make("go")
        assert [node.end()[0] for node in nodes] == [0, 0, 0]
