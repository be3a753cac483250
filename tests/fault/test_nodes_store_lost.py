"""Stores that come back without what they held, or as they were before: the nodes meet anew."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.etcd_servers import EtcdCluster
from support.launcher import Launcher
from support.nodes import QUICK, Job, Node
from support.processes import soon

TRAINING = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("place", rank, os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
    if rank == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.path.exists("fail"):
        sys.exit(3)
"""
PATIENCE = 45.0
"""Seconds after which what does not happen counts as not happening."""


def give(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    """The job's secret, if it has one, to all nodes."""
    monkeypatch.delenv("TORSH_SECRET", raising=False)
    if secret:
        monkeypatch.setenv("TORSH_SECRET", secret)


def starts(node: Node) -> int:
    """How often its worker has started in a round of all nodes, after a restart."""
    return len(re.findall(r"place \d+ [23] 1\n", node.output))


def until_all_train(nodes: list[Node], times: int) -> None:
    trains = soon(lambda: all(starts(node) >= times for node in nodes), PATIENCE)
    assert trains, "\n\n".join(node.output for node in nodes)


@pytest.fixture
def times(pytestconfig: pytest.Config) -> int:
    """How often it happens within one job."""
    return 20 if pytestconfig.getoption("--soak") else 1


def seconds_until_all_train(nodes: list[Node], times: int) -> float:
    begun = time.monotonic()
    until_all_train(nodes, times)
    return time.monotonic() - begun


def tell(what: str, seconds: list[float], ttl: int = 3) -> None:
    """Seen with -s: how long the job stood still."""
    longest, bar = f"{max(seconds):.1f} s at most", 2 * ttl + 5
    print(f"{what}: {len(seconds)} times, training again after {longest}: 2 ttl + 5 s are {bar} s")


def end_well(torshrun: Launcher, nodes: list[Node]) -> None:
    torshrun.make("go")
    for node in nodes:
        code, output = node.end()
        assert code == 0, output


def prepare(etcd: EtcdCluster) -> Path:
    """What an empty etcd holds, and beside it what one does in which others write so much that its
    revision is higher than it ever is with the job.
    """
    before = etcd.copy("before")
    for _ in range(500):
        etcd.members[0].post("kv/put", {"key": "YQ==", "value": "YQ=="})
    etcd.copy("overtaken")
    etcd.put_back(before)
    return before


def wiped(etcd: EtcdCluster, before: Path, during: Path) -> None:
    etcd.put_back(None)


def wiped_and_overtaken(etcd: EtcdCluster, before: Path, during: Path) -> None:
    etcd.put_back(before.with_name("overtaken"))


def restored_from_before(etcd: EtcdCluster, before: Path, during: Path) -> None:
    etcd.put_back(before)


def restored_from_the_middle(etcd: EtcdCluster, before: Path, during: Path) -> None:
    etcd.put_back(during)


@pytest.mark.etcd
@pytest.mark.parametrize(
    "happens", [wiped, wiped_and_overtaken, restored_from_before, restored_from_the_middle]
)
@pytest.mark.parametrize("secret", [secrets.token_hex(16), ""], ids=["secret", "none"])
def test_nodes_meet_anew_at_an_etcd_that_has_lost_them(
    torshrun: Launcher,
    etcd: EtcdCluster,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[EtcdCluster, Path, Path], None],
    secret: str,
    times: int,
) -> None:
    give(monkeypatch, secret)
    before = prepare(etcd)
    meet = ("--rdzv-backend=etcd", f"--rdzv-endpoint={etcd.endpoints[0]}", "--rdzv-id=long")
    script = torshrun.script(TRAINING)
    conf = QUICK.replace("ttl=3", "ttl=10") if happens is wiped_and_overtaken else QUICK
    with Job(torshrun, "--nnodes=3", "--max-restarts=3", *meet, f"--rdzv-conf={conf}") as job:
        nodes = [job.start(script) for _ in range(3)]
        assert soon(lambda: all("place" in node.output for node in nodes), PATIENCE)
        during = etcd.copy("during")
        torshrun.make("fail")
        until_all_train(nodes, 1)
        took = []
        for turn in range(times):
            happens(etcd, before, during)
            took.append(seconds_until_all_train(nodes, 2 + turn))
        tell(happens.__name__, took)
        end_well(torshrun, nodes)


@pytest.mark.parametrize("secret", [secrets.token_hex(16), ""], ids=["secret", "none"])
@pytest.mark.parametrize("backend", ["tcp", "static"])
def test_the_agent_that_serves_the_store_may_be_started_again(
    torshrun: Launcher, monkeypatch: pytest.MonkeyPatch, backend: str, secret: str, times: int
) -> None:
    give(monkeypatch, secret)
    script = torshrun.script(TRAINING)
    options = ("--max-restarts=3", f"--rdzv-backend={backend}")
    conf = QUICK.replace("ttl=3", "ttl=6")  # within a ttl the store is to be there again
    with Job.over_tcp(torshrun, "2", *options, conf=conf) as job:
        host = job.start("--node-rank=0", script)
        torshrun.make("fail")
        host.wait_for("this agent serves the job's store")
        other = job.start("--node-rank=1", script)
        until_all_train([host, other], 1)
        took = []
        for turn in range(times):
            host.process.kill()
            host.close()
            host, begun = job.start("--node-rank=0", script), time.monotonic()
            until_all_train([host], 1)
            until_all_train([other], 2 + turn)
            took.append(time.monotonic() - begun)
        tell(f"the {backend} store's agent killed and started again", took, ttl=6)
        end_well(torshrun, [host, other])
