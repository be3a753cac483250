"""Jobs of several nodes that meet at a real etcd."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from support.certificates import make_certificates
from support.etcd_servers import EtcdCluster, binary_or_skip
from support.launcher import Launcher
from support.nodes import QUICK, Job, Node

from torshrun import exit_codes

pytestmark = pytest.mark.etcd
ETCD_MEMBERS = 3

PLACE = 'print("place", rank, os.environ["WORLD_SIZE"], flush=True)\n'
SOFTLY = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
UNTIL_GO = "while not os.path.exists('go'): time.sleep(0.01)\n"
TRAINING = SOFTLY + PLACE + UNTIL_GO
OUTAGE = 5.0
"""Seconds; longer than a node may be silent to the store."""


def over_etcd(torshrun: Launcher, etcd: EtcdCluster, nnodes: str, *options: str) -> Job:
    meet = ("--rdzv-backend=etcd", f"--rdzv-endpoint={','.join(etcd.endpoints)}")
    return Job(torshrun, f"--nnodes={nnodes}", *meet, f"--rdzv-conf={QUICK}", *options)


def running(job: Job, script: str, number: int) -> list[Node]:
    """Nodes with a worker each; most likely the first one leads."""
    nodes = [job.start(script)]
    nodes[0].wait_for("waiting for the job's nodes")
    nodes += [job.start(script) for _ in range(number - 1)]
    for node in nodes:
        node.wait_for(f"place \\d+ {number}\n")
    return nodes


@pytest.mark.parametrize("victim", [0, 2], ids=["leader", "member"])
def test_whichever_node_is_killed_the_others_go_on(
    torshrun: Launcher, etcd: EtcdCluster, victim: int
) -> None:
    script = torshrun.script(TRAINING)
    with over_etcd(torshrun, etcd, "2:3") as job:
        nodes = running(job, script, 3)
        time.sleep(2)  # until each has heard the leader past etcd
        nodes.pop(victim).send(signal.SIGKILL)
        for node in nodes:
            node.wait_for(r"place \d 2\n")
        torshrun.make("go")
        assert [node.end()[0] for node in nodes] == [0, 0]


def test_a_member_of_etcd_that_is_killed_is_not_noticed(
    torshrun: Launcher, etcd: EtcdCluster
) -> None:
    script = torshrun.script(TRAINING)
    with over_etcd(torshrun, etcd, "2") as job:
        nodes = running(job, script, 2)
        for member in etcd.members:
            member.kill()
            time.sleep(1)
            member.start()
            etcd.await_all()
        torshrun.make("go")
        ends = [node.end() for node in nodes]
    assert [code for code, _ in ends] == [0, 0]
    for _, out in ends:
        assert len(re.findall("place", out)) == 1


def test_an_outage_of_etcd_disturbs_no_worker(torshrun: Launcher, etcd: EtcdCluster) -> None:
    script = torshrun.script(TRAINING)
    with over_etcd(torshrun, etcd, "2") as job:
        nodes = running(job, script, 2)
        for member in etcd.members:
            member.kill()
        time.sleep(OUTAGE)
        for member in etcd.members:
            member.start()
        etcd.await_all()
        torshrun.make("go")
        ends = [node.end() for node in nodes]
    assert [code for code, _ in ends] == [0, 0]
    for _, out in ends:
        assert len(re.findall("place", out)) == 1


def test_etcd_may_come_later_than_the_nodes(torshrun: Launcher, etcd: EtcdCluster) -> None:
    for member in etcd.members:
        member.kill()
    with over_etcd(torshrun, etcd, "2") as job:
        nodes = [job.start(torshrun.script(PLACE)) for _ in range(2)]
        for node in nodes:
            node.wait_for("waiting for etcd at http://127.0.0.1")
        for member in etcd.members:
            member.start()
        assert [node.end()[0] for node in nodes] == [0, 0]


def test_a_signal_ends_the_wait_for_etcd(torshrun: Launcher, tmp_path: Path) -> None:
    meet = ("--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:9")
    with Job(torshrun, "--nnodes=2", *meet) as job:
        node = job.start(torshrun.script(PLACE))
        node.wait_for("waiting for etcd")
        node.send(signal.SIGTERM)
        assert node.end()[0] == exit_codes.PREEMPTED


def test_the_same_name_can_be_used_again(torshrun: Launcher, etcd: EtcdCluster) -> None:
    script = torshrun.script(PLACE)
    for _ in range(2):
        with over_etcd(torshrun, etcd, "2", "--rdzv-id=again") as job:
            nodes = [job.start(script) for _ in range(2)]
            assert [node.end()[0] for node in nodes] == [0, 0]
            assert sorted(re.findall(r"place (\d) 2", "".join(n.output for n in nodes))) == [
                "0",
                "1",
            ]


def signed(folder: Path) -> tuple[str, str, str]:
    """An authority's certificate, and one that it has signed for this machine, with its key."""
    make_certificates(folder)
    ca, cert, key = (str(folder / f"{name}.pem") for name in ("ca", "server", "server-key"))
    return ca, cert, key


def test_certificates_and_a_secret_of_ones_own(torshrun: Launcher, tmp_path: Path) -> None:
    ca, cert, key = signed(tmp_path)
    served = (f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={ca}")
    options = (*served, "--client-cert-auth")
    secret = tmp_path / "secret"
    secret.write_text("a long and random text\n")
    secret.chmod(0o600)
    script = torshrun.script(PLACE)
    with EtcdCluster(binary_or_skip("3.5"), tmp_path, 1, *options, tls=True) as etcd:
        conf = f"{QUICK},cacert={ca},cert={cert},key={key}"
        meet = ("--rdzv-backend=etcd", f"--rdzv-endpoint=https://{etcd.endpoints[0]}")
        with Job(torshrun, "--nnodes=2", *meet, f"--rdzv-conf={conf}") as job:
            nodes = [job.start(f"--secret-file={secret}", script) for _ in range(2)]
            for node in nodes:
                code, out = node.end()
                assert code == 0, out
                assert "the job has no secret" not in out
