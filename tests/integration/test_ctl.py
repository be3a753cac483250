"""torshctl and the jobs that it looks at and changes, whose agents meet over tcp or at etcd."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.etcd_servers import EtcdCluster, binary_or_skip
from support.launcher import Launcher
from support.nodes import QUICK, Job, Node
from support.ports import free_port
from support.processes import soon

from torshrun import exit_codes

PLACE = 'print("place", rank, os.environ["WORLD_SIZE"], flush=True)\n'
SOFTLY = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
UNTIL_GO = "while not os.path.exists('go'): time.sleep(0.01)\n"
TRAINING = SOFTLY + PLACE + UNTIL_GO
PATIENCE = 60.0
"""Seconds for a command that ends by itself."""
STOPPED = 130


class Site:
    """A place to meet, jobs there, and torshctl."""

    def __init__(self, launcher: Launcher, *meet: str) -> None:
        self.launcher = launcher
        self.script = launcher.script(TRAINING)
        self._meet = meet

    def job(self, nnodes: str, *options: str) -> Job:
        conf = f"--rdzv-conf={QUICK}"
        return Job(
            self.launcher, f"--nnodes={nnodes}", *self._meet, conf, "--rdzv-id=job", *options
        )

    def running(self, job: Job, number: int) -> list[Node]:
        """Nodes with a worker each. The first one serves the store, if one of them does."""
        nodes = [job.start(self.script)]
        nodes[0].wait_for("waiting for the job's nodes|place 0 1")
        nodes += [job.start(self.script) for _ in range(number - 1)]
        for node in nodes:
            node.wait_for(f"place \\d+ {number}\n")
        return nodes

    def ctl(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run torshctl to its end."""
        with self.start(*argv) as process:
            out, error = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(argv, process.returncode, out, error)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start torshctl."""
        return subprocess.Popen(
            [sys.executable, "-m", "torshrun.ctl", *argv, *self._meet],
            env=self.launcher.environ,
            cwd=self.launcher.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def do(self, *argv: str) -> str:
        """Run it, and it has to end well; what it wrote."""
        ended = self.ctl(*argv)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.do("status", "job", "--json"))
        return told


@pytest.fixture(params=["tcp", pytest.param("etcd", marks=pytest.mark.etcd)])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with ExitStack() as stack:
        launcher = stack.enter_context(Launcher(tmp_path))
        endpoint = f"127.0.0.1:{free_port()}"
        if request.param == "etcd":
            folder = tmp_path / "etcd"
            folder.mkdir()
            etcd = stack.enter_context(EtcdCluster(binary_or_skip("3.5"), folder))
            (endpoint,) = etcd.endpoints
        yield Site(launcher, f"--rdzv-backend={request.param}", f"--rdzv-endpoint={endpoint}")


def finish(site: Site, *nodes: Node) -> None:
    site.launcher.make("go")
    assert [node.end()[0] for node in nodes] == [0] * len(nodes)


def test_a_job_is_shown(site: Site) -> None:
    with site.job("1:2") as job:
        nodes = site.running(job, 2)
        told = site.status()
        assert told["phase"] == "running"
        assert told["round"]["size"] == told["round"]["world_size"] == 2
        assert [row["node_rank"] for row in told["nodes"]] == [0, 1]
        text = site.do("status", "job")
        assert f"run job: round {told['round']['number']} runs on 2 nodes" in text
        for row in told["nodes"]:
            assert row["id"] in text
        assert site.do("status") == "job\n"
        missing = site.ctl("status", "jog")
        assert missing.returncode == 1
        assert "there is no run 'jog'" in missing.stderr
        assert "its runs are: 'job'" in missing.stderr
        finish(site, *nodes)


def test_a_job_is_watched_until_it_ends(site: Site) -> None:
    with site.job("1:2") as job:
        nodes = site.running(job, 1)
        with site.start("status", "job", "--watch", "--json") as process:
            assert process.stdout
            seen = [json.loads(process.stdout.readline())]
            nodes.append(job.start(site.script))
            nodes[1].wait_for("place 1 2")
            while seen[-1]["round"]["size"] != 2:
                seen.append(json.loads(process.stdout.readline()))
            finish(site, *nodes)
            seen += [json.loads(line) for line in process.stdout]
            assert process.wait(PATIENCE) == 0
    assert seen[0]["round"]["size"] == 1
    assert seen[-1]["verdict"]["outcome"] == "succeeded"


def test_a_job_shrinks_and_grows(site: Site) -> None:
    with site.job("1:3") as job:
        nodes = site.running(job, 3)
        assert "runs on 2 nodes" in site.do("scale", "job", "2")
        told = site.status()
        assert (told["round"]["size"], told["limits"]) == (2, [1, 2])
        assert "maximum of 2" in told["nodes"][2]["standing"]
        assert "runs on 3 nodes" in site.do("scale", "job", "2:3")
        assert site.status()["limits"] == [2, 3]
        late = site.ctl("scale", "job", "4", "--timeout=0.5")
        assert late.returncode == 1
        assert "waiting for 1 more node" in late.stderr
        nodes.append(job.start(site.script))
        nodes[3].wait_for(r"place \d 4\n")
        finish(site, *nodes)


def test_a_drained_node_goes_and_the_others_go_on(site: Site) -> None:
    with site.job("1:3") as job:
        nodes = site.running(job, 3)
        goes = site.status()["nodes"][-1]
        told = site.do("drain", "job", goes["id"])
        assert told.startswith(f"{goes['id']} left: round ")
        assert " runs on 2 nodes with " in told
        assert soon(lambda: any(node.process.poll() is not None for node in nodes), PATIENCE)
        ended = [node for node in nodes if node.process.poll() is not None]
        assert [node.end()[0] for node in ended] == [exit_codes.PREEMPTED]
        assert site.status()["round"]["restarts"] == 0
        finish(site, *(node for node in nodes if node not in ended))


def test_a_drain_that_would_end_the_job_is_refused(site: Site) -> None:
    with site.job("2") as job:
        nodes = site.running(job, 2)
        refused = site.ctl("drain", "job", "1")
        assert refused.returncode == 1
        assert "needs 2 nodes and would have 1" in refused.stderr
        many = site.ctl("drain", "job", "127.0.0.1")
        assert many.returncode == 1
        assert "names 2 nodes of run job" in many.stderr
        finish(site, *nodes)


def test_a_stopped_job_ends_on_all_nodes(site: Site) -> None:
    with site.job("1:2") as job:
        nodes = site.running(job, 2)
        told = site.do("stop", "job", "--reason", "the queue is full")
        assert "run job has ended with code 130: stopped" in told
        for node in nodes:
            code, out = node.end()
            assert code == STOPPED
            assert "the queue is full" in out


def test_what_is_not_waited_for_happens_all_the_same(site: Site) -> None:
    with site.job("1:2") as job:
        nodes = site.running(job, 2)
        assert "not waiting" in site.do("stop", "job", "--no-wait")
        assert [node.end()[0] for node in nodes] == [STOPPED] * 2


def test_an_interrupted_command_leaves_the_job_alone(site: Site) -> None:
    with site.job("1:2") as job:
        nodes = site.running(job, 2)
        with site.start("status", "job", "--watch") as process:
            assert process.stdout
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=PATIENCE)
            assert (process.returncode, error) == (-signal.SIGINT, "")
        finish(site, *nodes)


def test_who_does_not_know_the_secret_is_told_so(tmp_path: Path) -> None:
    with Launcher(tmp_path) as launcher:
        secret = tmp_path / "secret"
        secret.write_text("a long and random text")
        secret.chmod(0o600)
        meet = ("--rdzv-backend=tcp", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
        site = Site(launcher, *meet)
        with site.job("1:2", f"--secret-file={secret}") as job:
            nodes = site.running(job, 1)
            refused = site.ctl("status", "job")
            assert refused.returncode == exit_codes.RENDEZVOUS
            assert "--secret-file or TORSH_SECRET must be that of its nodes" in refused.stderr
            assert "runs on 1 node" in site.do("status", "job", f"--secret-file={secret}")
            finish(site, *nodes)


SAVING = """
from torsh_runtime.elastic import checkpoint_saved
checkpoint_saved(0.5)
while not os.path.exists("save"): time.sleep(0.01)
checkpoint_saved()
while not os.path.exists("go"): time.sleep(0.01)
"""


def test_a_job_grows_at_its_checkpoint(site: Site) -> None:
    script = site.launcher.script(SOFTLY + PLACE + SAVING)
    with site.job("1:2") as job:
        nodes = [job.start(script)]
        nodes[0].wait_for("place 0 1\n")
        assert soon(lambda: site.status()["holds"], PATIENCE)
        nodes.append(job.start(script))
        nodes[1].wait_for("which will let this one in")
        waits = site.ctl("scale", "job", "2", "--timeout=2")
        assert waits.returncode == 1
        assert "waiting for the next checkpoint" in waits.stderr
        site.launcher.make("save")
        for node in nodes:
            node.wait_for(r"place \d 2\n")
        finish(site, *nodes)


def test_who_drains_the_node_that_serves_the_store_ends_the_job(tmp_path: Path) -> None:
    with Launcher(tmp_path) as launcher:
        meet = ("--rdzv-backend=tcp", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
        site = Site(launcher, *meet)
        with site.job("1:2") as job:
            nodes = site.running(job, 2)
            host = next(row for row in site.status()["nodes"] if row["node_rank"] == 0)
            assert f"{host['id']} left" in site.do("drain", "job", host["id"])
            assert [node.end()[0] for node in nodes] == [exit_codes.PREEMPTED] * 2
            assert "which serves the job's store" in nodes[1].output


@pytest.mark.parametrize("site", [pytest.param("etcd", marks=pytest.mark.etcd)], indirect=True)
def test_what_was_asked_of_a_run_does_not_meet_the_next_of_its_name(site: Site) -> None:
    with site.job("1:2") as job:
        nodes = site.running(job, 2)
        site.do("scale", "job", "1")
        site.do("stop", "job", "--no-wait")
        assert [node.end()[0] for node in nodes] == [STOPPED] * 2
    with site.job("2") as job:
        finish(site, *site.running(job, 2))


@pytest.mark.parametrize("site", [pytest.param("etcd", marks=pytest.mark.etcd)], indirect=True)
def test_a_run_that_died_is_forgotten(site: Site) -> None:
    with site.job("1:2") as job:
        nodes = site.running(job, 1)
        refused = site.ctl("forget", "job")
        assert refused.returncode == 1
        assert "run job has 1 node; end it first" in refused.stderr
        nodes[0].process.kill()
        assert soon(lambda: "abandoned" in site.do("status", "job"), PATIENCE)
        assert site.do("forget", "job") == "run job is forgotten\n"
        assert site.do("status") == ""
