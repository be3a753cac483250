"""What torshctl hears from all agents of a run: recordings, stacks, and what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launcher import Launcher
from support.nodes import QUICK, Job, Node
from support.ports import free_port

PATIENCE = 60.0
TRAINING = """
    import numpy as np
    import torsh_runtime as tr
    from torsh_runtime.monitoring.recording import own_recording
    tr.init_process_group()
    array = np.ones(8, np.float32)
    for step in range(3):
        own_recording().notebook.write("step", "", step)
        tr.all_reduce(array)

    def load():
        own_recording().notebook.write("begin", "data")
        open("loading", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
        own_recording().notebook.write("end", "data")

    print("pid", rank, os.getpid(), flush=True)
    if rank == 3:
        load()
    tr.all_reduce(array)
"""


class Site:
    """A job of two nodes with two workers each, and torshctl."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.meet = ("--rdzv-backend=tcp", f"--rdzv-endpoint={self.endpoint}")

    def job(self, *options: str) -> Job:
        conf = f"--rdzv-conf={QUICK}"
        count = ("--nnodes=2", "--nproc-per-node=2")
        return Job(self.launcher, *count, *self.meet, conf, "--rdzv-id=job", *options)

    def ctl(self, *argv: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "torshrun.ctl", *argv, *self.meet],
            env=self.launcher.environ,
            cwd=self.launcher.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def told(self, *argv: str, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ctl(*argv, "--json", code=code))
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Launcher(tmp_path) as launcher:
        yield Site(launcher)


def start(job: Job, script: str) -> list[Node]:
    nodes = [job.start(script)]
    nodes[0].wait_for("serves the job's store")
    nodes.append(job.start(script))
    for number, node in enumerate(nodes):
        for rank in (2 * number, 2 * number + 1):
            node.wait_for(f"pid {rank} \\d+")
    return nodes


def pid_of(node: Node, rank: int) -> int:
    return int(node.wait_for(f"pid {rank} \\d+").split()[-1])


def test_all_agents_of_a_run_are_asked(site: Site) -> None:
    with site.job() as job:
        nodes = start(job, site.launcher.script(TRAINING))
        told = site.told("flight", "job")
        assert [*told["ranks"]] == ["0", "1", "2", "3"]
        assert all(each["ranks"] == [3] for each in told["suspicions"])  # or none, before 5 s
        assert told["silent"] == []
        *_, first, _, _, last = site.ctl("top", "job").splitlines()
        assert "waits for rank 3 in all_reduce #4" in first
        assert last.endswith("in data")
        stacks = site.told("stacks", "job")["ranks"]
        assert "load (" in stacks["3"]["stack"]
        traced = site.ctl("trace", "job", "--seconds=0.2", "-o", "all.json")
        assert "3 operations of ranks 0-3" in traced
        why = "step 3 has not come within 0.5 s: the ranks are at step 2"
        assert why in site.ctl("trace", "job", "--steps=3", "--seconds=0.5", code=1)
        os.kill(pid_of(nodes[0], 1), signal.SIGSTOP)
        text = site.ctl("stacks", "job")
        assert "is stopped (SIGCONT continues it)" in text
        found = site.told("explain", "job", code=1)
        assert (found["wrong"], found["ranks"]) == ("stopped", [1])
        os.kill(pid_of(nodes[0], 1), signal.SIGCONT)
        (where,) = [each for each in found["where"] if each["rank"] == 3]
        assert (where["step"], where["section"]) == (2, "data")
        assert where["frame"].startswith("load (train.py:")
        nodes[1].send(signal.SIGSTOP)
        partly = site.told("flight", "job", "--timeout", "1")
        nodes[1].send(signal.SIGCONT)
        assert [*partly["ranks"]] == ["0", "1"]
        assert "did not answer within 1 s" in partly["silent"][0]
        site.launcher.make("go")
        assert [node.end()[0] for node in nodes] == [0, 0]
    gone = site.ctl("flight", "job", code=69)
    assert "no store is served" in gone


def test_who_has_not_the_secret_hears_nothing(site: Site) -> None:
    site.launcher.environ["TORSH_SECRET"] = "a secret of sixteen bytes or more"
    with site.job() as job:
        nodes = start(job, site.launcher.script(TRAINING))
        assert [*site.told("flight", "job")["ranks"]] == ["0", "1", "2", "3"]
        site.launcher.environ["TORSH_SECRET"] = "another secret of sixteen bytes"
        assert "secret" in site.ctl("flight", "job", code=69)
        site.launcher.make("go")
        assert [node.end()[0] for node in nodes] == [0, 0]


def test_the_report_of_several_nodes_says_what_the_records_prove(site: Site) -> None:
    options = ("--hang-timeout=2", "--shutdown-timeout=1", "--log-dir=logs")
    with site.job(*options) as job:
        nodes = start(job, site.launcher.script(TRAINING))
        code, text = nodes[0].end()
        assert code != 0
        assert "rank 3 on " not in text  # both nodes are this host
        called = "all_reduce(float32[8], SUM) #4 of the default group"
        assert f"rank 3 never entered {called}: in section data since" in text
        nodes[1].end()
    found = site.told("explain", "logs", code=1)
    assert (found["wrong"], found["ranks"], found["state"]) == ("failed", [3], "ended")
    assert (found["operation"]["operation"], found["operation"]["sequence"]) == ("all_reduce", 4)
    (where,) = [each for each in found["where"] if each["rank"] == 3]
    assert where["section"] == "data"
    assert where["frame"].startswith("load (train.py:")
    assert len(json.dumps(found)) <= 8192
    assert "what to do" in site.ctl("explain", "logs", code=1)
