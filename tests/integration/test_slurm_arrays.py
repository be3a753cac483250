"""Arrays, interactive shells and srun's PMI on a real Slurm cluster of two nodes."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.processes import soon
from support.slurm import PATIENCE, SlurmCluster

pytestmark = pytest.mark.slurm

TASK = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
array, task = os.environ["SLURM_ARRAY_JOB_ID"], os.environ["SLURM_ARRAY_TASK_ID"]
is_preempted = task == "0" or os.environ["SLURM_JOB_ID"] == array
if is_preempted and "SLURM_RESTART_COUNT" not in os.environ:
    subprocess.run(["scancel", "--signal=USR1", f"{array}_{task}"])
    time.sleep(120)
with open("done.txt", "a") as file:
    file.write(task + "\\n")
"""
LOCAL_RANK = """
import torsh_runtime as tr
before = tr.get_node_local_rank()
tr.init_process_group()
own = (tr.get_rank(), tr.get_world_size(), before, tr.get_node_local_rank())
print("place %d %d %d %d\\n" % own, end="", flush=True)
tr.destroy_process_group()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster() as running:
        yield running


def test_of_an_array_each_task_is_done_once_and_what_is_preempted_is_requeued_alone(
    cluster: SlurmCluster,
) -> None:
    """Two are preempted, of which one has the array's own job id: to scontrol that is the array."""
    cluster.script(TASK)
    script = "#!/bin/bash\nsrun torshrun --requeue-on-preempt train.py\n"
    options = ("--array=0-4%2", "--ntasks=1", "--time=30", "--requeue", "--open-mode=append")
    job = cluster.submit(script, *options, "--output=task-%a.out")

    def is_over() -> bool:
        return not cluster.call("squeue", "--noheader", f"--job={job.number}", check=False).strip()

    assert soon(is_over, 3 * PATIENCE), job.told()
    outputs = {str(task): (cluster.work / f"task-{task}.out").read_text() for task in range(5)}
    done = (cluster.work / "done.txt").read_text().split()
    assert sorted(done) == [*"01234"], outputs
    records = cluster.call("scontrol", "show", "job", job.number).split("\n\n")
    facts = [dict(re.findall(r"(\w+)=(\S+)", record)) for record in records if record]
    (last,) = (each["ArrayTaskId"] for each in facts if each["JobId"] == job.number)
    assert last != "0"
    restarts = {each["ArrayTaskId"]: int(each["Restarts"]) for each in facts}
    assert restarts == {task: int(task in ("0", last)) for task in "01234"}, outputs
    for output in outputs.values():
        assert all(int(left) > 10 for left in re.findall(r"(\d+) min left", output))
        assert "min left" in output


def typed(cluster: SlurmCluster, shell: tuple[str, ...], *lines: str) -> str:
    """What a person sees who types these lines into the shell."""
    terminal, inside = pty.openpty()
    try:
        with subprocess.Popen(
            ["setsid", "--ctty", "--wait", *shell],
            cwd=cluster.work,
            env={**cluster.environ, "SHELL": "/bin/bash"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
        ) as process:
            os.close(inside)
            os.write(terminal, "\n".join([*lines, "exit", ""]).encode())
            seen = b""
            with suppress(OSError):  # EIO, once the shell has ended
                while part := os.read(terminal, 1 << 16):
                    seen += part
            process.wait(PATIENCE)
    finally:
        os.close(terminal)
    return seen.decode(errors="replace").replace("\r\n", "\n")


@pytest.mark.parametrize(
    "shell",
    [
        ("srun", "--nodes=2", "--ntasks-per-node=2", "--pty", "bash", "--norc"),
        ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2"),
    ],
    ids=lambda shell: str(shell[0]),
)
def test_in_an_interactive_shell_torshrun_is_alone_and_says_what_starts_it_on_all_nodes(
    cluster: SlurmCluster, shell: tuple[str, ...]
) -> None:
    cluster.script(LOCAL_RANK)
    cluster.script("print('here', flush=True)\n", "alone.py")
    cluster.script(
        "import os, torsh_runtime.launchers as l\nprint('place is', l.place(os.environ))\n",
        "place.py",
    )
    advice = "srun --overlap --ntasks=2 --ntasks-per-node=1 torshrun"
    seen = typed(
        cluster,
        shell,
        "torshrun alone.py </dev/null",
        "python place.py",
        f"{advice} train.py </dev/null",
        "srun --overlap --ntasks=4 --ntasks-per-node=2 torshrun train.py </dev/null",
    )
    assert f"on n1 only, of the job's 2 nodes, as srun did not start it ({advice} …)" in seen
    assert re.search(r"^(\S*\[0\] \S*)?here$", seen, re.MULTILINE), seen
    assert "place is {}" in seen
    assert "place 0 2 0 0" in seen
    assert "place 1 2 0 0" in seen
    options = "--cpus-per-task=2 --ntasks=2 --ntasks-per-node=1"
    assert f"srun --overlap {options} torshrun --nproc-per-node=2 …" in seen


def test_a_requeue_that_slurm_refuses_is_told_with_its_reason(cluster: SlurmCluster) -> None:
    cluster.script(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))\n"
        "subprocess.run(['scancel', '--signal=USR1', os.environ['SLURM_JOB_ID']])\n"
        "time.sleep(120)\n"
    )
    seen = typed(cluster, ("srun", "--ntasks=1", "torshrun", "--requeue-on-preempt", "train.py"))
    assert re.search(r"error: asking Slurm to requeue job \d+ has failed: Only batch jobs", seen)
    assert "has been asked" not in seen


@pytest.mark.parametrize("command", [("torshrun", "train.py"), ("bash", "script.sh")])
def test_with_a_terminal_that_no_shell_has_a_step_is_a_step(
    cluster: SlurmCluster, command: tuple[str, ...]
) -> None:
    cluster.script(LOCAL_RANK)
    cluster.script("torshrun train.py | cat\n", "script.sh")
    seen = typed(cluster, ("srun", "--nodes=2", "--ntasks-per-node=1", "--pty", *command))
    assert "round 0: node 0 of 2, 2 workers in all" in seen
    assert "place 0 2 0 0" in seen


def test_ranks_that_srun_starts_with_pmi2_or_without_have_their_place(
    cluster: SlurmCluster,
) -> None:
    """Slurm's PMI sets variables of mpiexec's."""
    cluster.script(LOCAL_RANK)
    script = (
        "#!/bin/bash\n"
        "srun --mpi=pmi2 --distribution=block python train.py\n"
        "srun --mpi=none --distribution=block python train.py\n"
    )
    job = cluster.submit(script, "--nodes=2", "--ntasks=3", "--ntasks-per-node=2")
    assert job.end() == "COMPLETED", job.told()
    found = Counter(re.findall(r"place \d \d \d \d", job.output))
    assert found == {"place 0 3 0 0": 2, "place 1 3 1 1": 2, "place 2 3 0 0": 2}


def test_workers_that_share_one_core_of_the_steps_are_told_of(cluster: SlurmCluster) -> None:
    """As task/affinity binds a task whose srun was not told how many processors it needs."""
    cluster.script("")
    bound = "taskset --cpu-list 0"
    script = (
        f"#!/bin/bash\nsrun {bound} torshrun train.py\n"
        f"export SRUN_CPUS_PER_TASK=1\nsrun --exact {bound} torshrun train.py\n"
    )
    job = cluster.submit(script, "--nodes=1", "--ntasks=1", "--cpus-per-task=4")
    assert job.end() == "COMPLETED", job.told()
    said = "all workers here share 1 of the 4 processors that the step has"
    assert job.output.count(said) == 1, job.output
    assert "export SRUN_CPUS_PER_TASK=4" in job.output
