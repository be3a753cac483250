"""Jobs whose nodes are started by mpiexec, or with the environments of PBS, LSF, SkyPilot, dstack
and Kubernetes, and the end of a job's time.

The environments are those that tests/unit/torshrun/clusters tells the sources of; addresses of this
host stand for nodes.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from support.blocks import shown
from support.hosts import needs_hosts, plugged
from support.launcher import Launcher
from support.nodes import Node
from support.ports import free_port
from support.process_worlds import NotHereError, environ, mpiexec
from support.stand_ins import stand_in

from torsh_runtime import slurm

SUM = """
import numpy as np, torsh_runtime as tr
tr.init_process_group()
total = np.ones(1)
tr.all_reduce(total)
print("sum %g\\n" % total[0], end="", flush=True)
tr.destroy_process_group()
"""
STAYS = """
print("begins\\n", end="", flush=True)
time.sleep(60)
"""
PBS = {"PBS_JOBID": "8.server", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_VERSION": "23.06"}
LSF = {"LSB_JOBID": "21", "LSB_JOBINDEX": "0", "LSB_MCPU_HOSTS": "127.0.0.1 4 127.0.0.2 4"}
ROOT = Path(__file__).parents[2]
SECRET = "an example of a secret"


@contextmanager
def nodes(
    torshrun: Launcher, environs: Sequence[Mapping[str, str]], script: str
) -> Iterator[list[Node]]:
    """One for each environment."""
    common = {**torshrun.environ, "HOME": str(torshrun.folder)}
    started = [Node(torshrun.start(script, env={**common, **environ})) for environ in environs]
    try:
        yield started
    finally:
        for node in started:
            node.close()


def pbs(torshrun: Launcher) -> list[dict[str, str]]:
    """As pbsdsh starts a task on each host."""
    file = torshrun.folder / "nodes"
    file.write_text("127.0.0.1\n127.0.0.1\n127.0.0.2\n127.0.0.2\n")
    common = {**PBS, "PBS_JOBID": f"{os.getpid()}.server", "PBS_NODEFILE": str(file)}
    return [{**common, "PBS_NODENUM": str(node), "PBS_TASKNUM": str(2 + node)} for node in range(2)]


def lsf(torshrun: Launcher) -> list[dict[str, str]]:
    """As blaunch starts a task on each host."""
    common = {**LSF, "LSB_JOBID": str(os.getpid())}
    return [{**common, "LSF_PM_TASKID": str(1 + node)} for node in range(2)]


def pods() -> list[dict[str, str]]:
    """As a manifest gives them to the pods of an Indexed Job."""
    common = {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "TORSH_NNODES": "2",
        "TORSH_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}",
        "TORSH_RDZV_ID": "6d9a3b0c-uid",
        "TORSH_SECRET": SECRET,
    }
    return [{**common, "JOB_COMPLETION_INDEX": str(index)} for index in range(2)]


def skypilot(torshrun: Launcher) -> list[dict[str, str]]:
    """As its `run` section has them on each node."""
    common = {
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        "SKYPILOT_TASK_ID": f"sky-2026-11-27-18-00-00-123456_mine_{os.getpid()}",
    }
    return [{**common, "SKYPILOT_NODE_RANK": str(node)} for node in range(2)]


def dstack(torshrun: Launcher) -> list[dict[str, str]]:
    """As a distributed task has them on each node."""
    common = {
        "DSTACK_RUN_NAME": f"train-{os.getpid()}",
        "DSTACK_NODES_NUM": "2",
        "DSTACK_NODES_IPS": "127.0.0.1\n127.0.0.2",
        "DSTACK_MASTER_NODE_IP": "127.0.0.1",
        "DSTACK_GPUS_PER_NODE": "1",
        "DSTACK_GPUS_NUM": "2",
    }
    return [{**common, "DSTACK_NODE_RANK": str(node)} for node in range(2)]


@pytest.mark.parametrize("scheduler", [pbs, lsf, skypilot, dstack])
def test_tasks_of_a_scheduler_are_the_nodes_of_a_job(torshrun: Launcher, scheduler: object) -> None:
    assert callable(scheduler)
    script = torshrun.script(SUM)
    with nodes(torshrun, scheduler(torshrun), script) as both:
        for rank, node in enumerate(both):
            code, output = node.end()
            assert code == 0, output
            assert "sum 2" in output
            assert f"round 0: node {rank} of 2" in output
            assert "the job has no secret" not in output


TYPED = {
    skypilot: (
        "--nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE "
        "--node_rank=${SKYPILOT_NODE_RANK} "
        '--master_addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1) --master_port=$PORT',
        "--nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE "
        "--rdzv_backend=c10d --rdzv_id $SKYPILOT_TASK_ID "
        '--rdzv_endpoint=$(echo "$SKYPILOT_NODE_IPS" | head -n1):$PORT',
    ),
    dstack: (
        "--nproc-per-node=$DSTACK_GPUS_PER_NODE --node-rank=$DSTACK_NODE_RANK "
        "--nnodes=$DSTACK_NODES_NUM --master-addr=$DSTACK_MASTER_NODE_IP --master-port=$PORT",
    ),
}
"""Options of torchrun that the guides of both tell their users to type."""


@pytest.mark.parametrize("orchestrator", TYPED)
def test_what_users_of_orchestrators_type_for_torchrun(
    torshrun: Launcher, orchestrator: Callable[[Launcher], list[dict[str, str]]]
) -> None:
    script = torshrun.script(SUM)
    for options in TYPED[orchestrator]:
        line = f"exec {sys.executable} -m torshrun {options} {script}"
        port = str(free_port())
        started = [
            Node(torshrun.start(command=("bash", "-c", line), env={**environ, "PORT": port}))
            for environ in ({**torshrun.environ, **each} for each in orchestrator(torshrun))
        ]
        for node in started:
            code, output = node.end()
            node.close()
            assert code == 0, output
            assert "sum 2" in output


def test_variables_of_an_orchestrator_that_cannot_be(torshrun: Launcher) -> None:
    """They are found before any work starts."""
    torshrun.environ |= {**skypilot(torshrun)[0], "SKYPILOT_NODE_RANK": "2"}
    code, out, err = torshrun.run(torshrun.script("print('runs')"))
    assert (code, out) == (2, "")
    assert "SkyPilot's variables are invalid: SKYPILOT_NODE_RANK='2'" in err
    assert torshrun.run("--scheduler=none", torshrun.script("print('runs')"))[:2] == (
        0,
        "[0] runs\n",
    )


@needs_hosts
@pytest.mark.netns
def test_a_place_to_meet_that_skypilots_guide_calls_localhost(torshrun: Launcher) -> None:
    """On the node that serves the store, while the other one knows it by its address."""
    script = torshrun.script(SUM)
    with plugged(2) as hosts:
        first = hosts[0].ipv4
        environs = skypilot(torshrun)
        started = []
        for environ, host, place in zip(environs, hosts, ("localhost", first), strict=True):
            environ["SKYPILOT_NODE_IPS"] = f"{first}\n{hosts[1].ipv4}"
            options = ("--rdzv_backend=c10d", f"--rdzv_endpoint={place}:29500", "--nnodes=2")
            started.append(
                Node(
                    torshrun.start(
                        *options,
                        script,
                        within=host.command,
                        env={**torshrun.environ, **environ},
                    )
                )
            )
        for node in started:
            code, output = node.end()
            node.close()
            assert code == 0, output
            assert "sum 2" in output


def test_who_holds_the_port_is_named_and_then_waited_for(torshrun: Launcher) -> None:
    environs = pbs(torshrun)
    script = torshrun.script(SUM)
    holder = socket.create_server(("", slurm.port(f"pbs-{environs[0]['PBS_JOBID']}")))
    with holder, nodes(torshrun, environs, script) as both:
        both[0].wait_for(r"the port is held by \S+ \(pid \d+\)")
        holder.close()
        assert [node.end()[0] for node in both] == [0, 0]


def test_pods_of_an_indexed_job(torshrun: Launcher) -> None:
    script = torshrun.script(SUM)
    with nodes(torshrun, pods(), script) as both:
        for rank, pod in enumerate(both):
            code, output = pod.end()
            assert code == 0, output
            assert f"round 0: node {rank} of 2" in output


def test_a_pod_that_is_deleted_leaves_as_preempted(torshrun: Launcher) -> None:
    script = torshrun.script(STAYS)
    with nodes(torshrun, pods(), script) as both:
        for pod in both:
            pod.wait_for("begins")
        both[1].send(signal.SIGTERM)
        assert [pod.end()[0] for pod in both] == [75, 75]


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["mpich-3", "openmpi-3"])
def test_mpiexec_starts_a_torshrun_for_each_node(name: str, tmp_path: Path) -> None:
    try:
        launcher = mpiexec(name)
    except NotHereError as error:
        pytest.skip(str(error))
    script = tmp_path / "train.py"
    script.write_text(SUM)
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "torshrun", "--nproc-per-node", "2", str(script)],
        env={**environ(), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 6") == 6
    assert "with a secret made of" in done.stderr
    assert "the job has no secret" not in done.stderr


def test_before_the_end_workers_are_noticed_and_then_stopped(torshrun: Launcher) -> None:
    """Who handles the notice gets it, and nobody else; then all have their grace."""
    script = torshrun.script(
        """
        from torsh_runtime.elastic import time_left
        if rank == 0:
            def notice(*_):
                print("noticed", 0 < time_left() < 9, flush=True)
            signal.signal(signal.SIGUSR1, notice)
        print("begins", 8 < time_left() <= 15, flush=True)
        while True:
            time.sleep(0.1)
        """
    )
    options = ("--nproc-per-node=2", "--time-limit=15", "--end-notice=9", "--shutdown-timeout=2")
    code, out, err = torshrun.run(*options, script)
    assert code == 75, err
    assert sorted(out.splitlines()) == ["[0] begins True", "[0] noticed True", "[1] begins True"]
    assert re.search(r"9 s of the job's time are left: SIGUSR1", err)
    assert re.search(r"7 s of the job's time are left: leaving it", err)


def test_without_an_end_no_time_is_left_to_tell(torshrun: Launcher) -> None:
    script = torshrun.script(
        "from torsh_runtime.elastic import time_left\nprint(time_left(), flush=True)\n"
    )
    assert torshrun.run(script)[:2] == (0, "[0] None\n")


def test_who_makes_room_after_a_notice_is_to_be_resumed(torshrun: Launcher) -> None:
    """The first that has gone does not cut short what the others still save."""
    script = torshrun.script(
        """
        def leave(*_):
            time.sleep(2 * rank)
            print("saved", flush=True)
            os._exit(75)
        signal.signal(signal.SIGUSR1, leave)
        open(f"ready{rank}", "w").close()
        time.sleep(60)
        """
    )
    process = torshrun.start("--nproc-per-node=2", "--max-restarts=3", script)
    torshrun.wait_for("ready0", "ready1")
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 75, err
    assert sorted(out.splitlines()) == ["[0] saved", "[1] saved"]
    assert "rank 0 has made room: the other 1 worker within 30 s may too" in err
    assert "failed" not in err


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (shown("docs/clusters.md", "#!/bin/bash\n#PBS"), "pbsdsh"),
        (shown("docs/clusters.md", "#!/bin/bash\n#BSUB"), "blaunch"),
    ],
    ids=["PBS", "LSF"],
)
def test_the_guides_scripts_train(text: str, name: str, torshrun: Launcher) -> None:
    script = torshrun.folder / "job.sh"
    script.write_text(text)
    tools = torshrun.folder / "bin"
    stand_in(name, tools)
    (torshrun.folder / "examples").symlink_to(ROOT / "examples")
    given = pbs(torshrun)[0] if name == "pbsdsh" else {**LSF, "LSB_JOBID": str(os.getpid())}
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    here = {"HOME": str(torshrun.folder), "PBS_O_WORKDIR": str(torshrun.folder), "PATH": path}
    done = subprocess.run(
        ["bash", script],
        env={**torshrun.environ, **given, **here, "PBS_TASKNUM": "1"},
        cwd=torshrun.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "node 1 of 2, 2 workers in all" in done.stderr
    assert re.search(r"test accuracy 9[0-9.]+%", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("text", "lines", "orchestrator"),
    [
        (shown("docs/clusters.md", "# train.yaml"), "run", skypilot),
        (shown("docs/clusters.md", "# .dstack.yml"), "commands", dstack),
    ],
    ids=["SkyPilot", "dstack"],
)
def test_the_guides_tasks_train(
    text: str,
    lines: str,
    orchestrator: Callable[[Launcher], list[dict[str, str]]],
    torshrun: Launcher,
) -> None:
    """Their commands run on each node, with the variables that the orchestrator sets there."""
    task = yaml.safe_load(text)
    script = task[lines] if isinstance(task[lines], str) else "\n".join(task[lines])
    script = script.replace("--epochs 20", "--epochs 3")
    assert "TORSH_SECRET" in (task.get("secrets") or task["env"])
    (torshrun.folder / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    both = [
        Node(torshrun.start(command=("bash", "-ec", script), env=environ))
        for environ in (
            {**torshrun.environ, **each, "TORSH_SECRET": SECRET, "PATH": path}
            for each in orchestrator(torshrun)
        )
    ]
    for rank, node in enumerate(both):
        code, output = node.end(120)
        node.close()
        assert code == 0, output
        assert f"node {rank} of 2, 2 workers in all" in output
        assert "the job has no secret" not in output
        assert rank or re.search(r"test accuracy [0-9.]+%", output), output
