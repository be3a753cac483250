"""Jobs over a real etcd, whose first agent, the leader, is killed at each step of joining."""

from __future__ import annotations

import signal
import sys

import pytest
import support.killed_at
from support.etcd_servers import EtcdCluster
from support.launcher import Launcher
from support.nodes import Job, Node
from support.processes import soon
from support.sites import CONF

pytestmark = pytest.mark.etcd

WORK = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("place", rank, os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists("go"): time.sleep(0.01)
"""
STEPS = {
    "has begun the epoch": ("epoch", "EpochJoin._begin"),
    "knows the epoch": ("epoch", "EpochJoin.enter"),
    "serves the others": ("together", "AgentServer.open"),
    "has a lease": ("registration", "Registration.open_lease"),
    "is written down": ("registration", "Registration.write"),
    "leads": ("election", "Election.stand"),
    "has formed the round": ("lead", "Lead._form"),
    "has read its place": ("handler", "NodeRendezvous._read_place"),
    "is inside": ("member", "Member.entered"),
    "serves the round's store": ("together", "Together.serve_store"),
}


def start_and_kill(torshrun: Launcher, job: Job, script: str, step: str) -> Node:
    """One more node of the job, which is killed when it has done this step."""
    module, name = STEPS[step]
    point = (f"torshrun.rendezvous.{module}", name)
    return job.start(script, within=[sys.executable, support.killed_at.__file__, *point])


@pytest.mark.parametrize("step", STEPS)
def test_the_others_train_without_an_agent_that_is_killed_when_it(
    torshrun: Launcher, etcd: EtcdCluster, step: str
) -> None:
    script = torshrun.script(WORK)
    meet = ("--rdzv-backend=etcd", f"--rdzv-endpoint={etcd.endpoints[0]}")
    with Job(torshrun, "--nnodes=2:3", *meet, f"--rdzv-conf={CONF}") as job:
        dies = start_and_kill(torshrun, job, script, step)
        assert soon(lambda: dies.process.poll() is not None or "waiting for" in dies.output)
        others = [job.start(script) for _ in range(2)]
        assert dies.end()[0] == -signal.SIGKILL
        for node in others:
            node.wait_for(r"place \d 2\n")
        torshrun.make("go")
        assert [node.end()[0] for node in others] == [0, 0]
