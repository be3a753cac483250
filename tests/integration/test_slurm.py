"""Jobs on a real Slurm cluster of two nodes, whose names nothing but Slurm knows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.blocks import shown
from support.processes import marked, soon
from support.slurm import KILL_WAIT, NODES, Job, SlurmCluster
from support.stand_ins import stand_in

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
BATCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --time=30
"""
SUM = """
import numpy as np, torsh_runtime as tr
tr.init_process_group()
total, everyone = np.ones(1), [np.zeros(1) for _ in range(tr.get_world_size())]
tr.all_reduce(total)
tr.all_gather(everyone, np.full(1, float(tr.get_rank())))
print("sum %g of ranks %s\\n" % (total[0], [int(one[0]) for one in everyone]), end="", flush=True)
tr.destroy_process_group()
"""
PREEMPTIBLE = """
import os, signal, sys, time
from torsh_runtime.elastic import time_left

def save(signo, frame):
    print("saved\\n", end="", flush=True)
    sys.exit(75 if signo == signal.SIGUSR1 else 0)

run, again = os.environ["TORCHELASTIC_RUN_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")
if "deaf" not in sys.argv:
    for signo in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(signo, save)
print(f"{run} begins, start {again}, {0 < time_left() <= 1800}\\n", end="", flush=True)
if again == "0":
    time.sleep(120)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster() as running:
        yield running


def script_of_the_guide() -> str:
    return shown("docs/clusters.md", "#!/bin/bash\n#SBATCH")


def test_the_guides_script_trains_on_two_nodes_whose_names_no_dns_knows(
    cluster: SlurmCluster,
) -> None:
    with pytest.raises(OSError, match=r"not known|resolution"):
        socket.getaddrinfo(NODES[0], 1)
    shutil.copytree(ROOT / "examples", cluster.work / "examples", dirs_exist_ok=True)
    job = cluster.submit(script_of_the_guide())
    assert job.end() == "COMPLETED", job.told()
    assert "round 0: node 1 of 2, 2 workers in all" in job.output
    accuracy = [float(text) for text in re.findall(r"test accuracy ([\d.]+)%", job.output)]
    assert accuracy[-1] > 90
    assert "the job has no secret" not in job.output
    key = cluster.folder / "home/.config/torshrun/key"
    assert job.output.count(f"with a secret made of {key}") == 2
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text().strip() not in job.output


def test_the_rendered_script_trains_with_no_option_given_by_hand(cluster: SlurmCluster) -> None:
    file = yaml.safe_load((ROOT / "configs/cluster.yaml").read_text())
    place = file["cluster"]
    place["slurm"] = {"partition": "main"}  # whose nodes have told Slurm of no memory
    del place["memory"]
    path = cluster.script(yaml.safe_dump(file), "cluster.yaml")
    script = cluster.call("torshctl", "render", "slurm", "-f", str(path))
    shutil.copytree(ROOT / "examples", cluster.work / "examples", dirs_exist_ok=True)
    shutil.rmtree(cluster.work / "checkpoints", ignore_errors=True)
    job = cluster.submit(script)
    assert job.end() == "COMPLETED", job.told()
    assert "round 0: node 1 of 2, 4 workers in all" in job.output
    accuracy = [float(text) for text in re.findall(r"test accuracy ([\d.]+)%", job.output)]
    assert accuracy[-1] > 90


@pytest.mark.skipif(not shutil.which("qsub"), reason="needs Debian's slurm-wlm-torque")
def test_the_rendered_pbs_script_trains_by_slurms_own_qsub(cluster: SlurmCluster) -> None:
    """Which knows PBS's options, but sets none of its variables; there is no pbsdsh either."""
    file = yaml.safe_load((ROOT / "configs/cluster.yaml").read_text())
    place = file["cluster"]
    place["pbs"] = {"setup": f"export PATH={Path(sys.executable).parent}:$PATH"}
    del place["memory"]
    path = cluster.script(yaml.safe_dump(file), "cluster.yaml")
    script = cluster.call("torshctl", "render", "pbs", "-f", str(path))
    shutil.copytree(ROOT / "examples", cluster.work / "examples", dirs_exist_ok=True)
    shutil.rmtree(cluster.work / "checkpoints", ignore_errors=True)
    stand_in("pbsdsh", cluster.work / "tools")
    cluster.script("127.0.0.1\n127.0.0.2\n", "nodes")
    pbs = {
        "PBS_JOBID": f"{os.getpid()}.server",
        "PBS_NODEFILE": "$PWD/nodes",
        "PBS_O_WORKDIR": "$PWD",
        "PBS_NODENUM": "0",
        "PBS_TASKNUM": "1",
        "PATH": "$PWD/tools:$PATH",
    }
    server = " ".join(f'{name}="{value}"' for name, value in pbs.items())
    body = f"unset ${{!SLURM*}}\nexport {server}\nset -eo pipefail\n"
    cluster.script(script.replace("set -eo pipefail\n", body), "job.pbs")
    job = Job(cluster, cluster.call("qsub", "job.pbs").partition(".")[0].strip())
    assert job.end() == "COMPLETED", job.written
    assert "round 0: node 1 of 2, 4 workers in all" in job.written
    assert re.search(r"test accuracy 9[0-9.]+%", job.written), job.written


def test_a_killed_worker_is_started_again(cluster: SlurmCluster) -> None:
    cluster.script(
        "import os, signal, time\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print(f'attempt {attempt} of rank {os.environ[\"RANK\"]}\\n', end='', flush=True)\n"
        "if attempt == '0':\n"
        "    if os.environ['RANK'] == '1':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    time.sleep(60)\n"
    )
    job = cluster.submit(f"{BATCH}srun torshrun --max-restarts 1 train.py\n")
    assert job.end() == "COMPLETED", job.told()
    for rank in range(2):
        assert f"attempt 1 of rank {rank}" in job.output


def agent_of(job: Job, node: str) -> int:
    """The torshrun on the node of this rank: not its keeper, and no worker."""
    for pid in marked(f"SLURM_JOB_ID={job.number}\0"):
        process = Path("/proc", str(pid))
        if f"SLURM_NODEID={node}\0".encode() in (process / "environ").read_bytes():
            command = (process / "cmdline").read_bytes().split(b"\0")
            if len(command) > 1 and command[1].endswith(b"/torshrun"):
                return pid
    raise AssertionError(job.told())


def test_a_job_may_go_on_without_a_node(cluster: SlurmCluster) -> None:
    cluster.script(
        "import os, time\n"
        "size = os.environ['WORLD_SIZE']\n"
        "print(f'round of {size}\\n', end='', flush=True)\n"
        "if size == '2':\n"
        "    time.sleep(60)\n"
    )
    options = "--nnodes 1:2 --rdzv-conf ttl=2,last_call_timeout=5"
    command = f"srun --no-kill --label torshrun {options} train.py; echo ended with $?"
    job = cluster.submit(f"{BATCH}{command}\n")
    job.wait_for("round of 2", times=2)
    (host,) = re.findall(r"(\d): torshrun: this agent serves the job's store", job.output)
    os.kill(agent_of(job, "1" if host == "0" else "0"), signal.SIGKILL)
    job.wait_for("round of 1")
    job.wait_for("the job is over (succeeded)")
    job.wait_for("ended with 137")
    assert "1 of its 2 nodes did not stay to the end" in job.output


def test_a_notice_is_passed_on_and_the_job_resumes_under_its_name(cluster: SlurmCluster) -> None:
    cluster.script(PREEMPTIBLE)
    command = "srun torshrun --requeue-on-preempt train.py"
    job = cluster.submit(f"{BATCH}{command}\n", "--requeue", "--open-mode=append")
    job.wait_for(f"slurm-{job.number}.0 begins, start 0, True", times=2)
    cluster.call("scancel", "--signal=USR1", job.number)
    job.wait_until("Restarts", "1")
    job.wait_for(f"slurm-{job.number}.0 begins, start 1, True", times=2)
    assert job.end() == "COMPLETED", job.told()
    assert job.output.count("saved") == 2
    assert "failed" not in job.output
    assert "the job is over (preempted)" in job.output
    assert job.output.count("Slurm has been asked to requeue") <= 1  # srun may be gone by then
    assert job.facts["Restarts"] == "1"
    assert "requeued 1 time(s)" in job.output


def test_a_job_over_ssh_has_the_allocations_name_and_end_and_is_requeued(
    cluster: SlurmCluster,
) -> None:
    cluster.script(PREEMPTIBLE)
    cluster.script("localhost slots=2\n", "hosts.txt")
    lines = shown("docs/ssh.md", "#SBATCH")
    job = cluster.submit(f"{BATCH}{lines}", "--open-mode=append")
    job.wait_for(f"slurm-{job.number} begins, start 0, True", times=2)
    assert "as srun did not start it" not in job.output
    cluster.call("scancel", "--batch", "--signal=USR1", job.number)
    job.wait_for(f"slurm-{job.number} begins, start 1, True", times=2)
    assert job.end() == "COMPLETED", job.told()
    assert "saved" in job.output
    assert job.facts["Restarts"] == "1"


def test_srun_starts_no_job_over_ssh_on_each_node(cluster: SlurmCluster) -> None:
    cluster.script(SUM)
    cluster.script("localhost slots=2\n", "hosts.txt")
    options = "--hostfile hosts.txt"
    job = cluster.submit(
        f"{BATCH}srun torshrun {options} train.py; echo ended with $?\n"
        f"srun --nodes=1 --ntasks=1 torshrun {options} train.py\n"
        f"srun torshrun --scheduler none {options} train.py\n"
    )
    assert job.end() == "COMPLETED", job.told()
    assert "--hostfile: slurm has started several torshruns" in job.output
    assert "ended with 2" in job.output
    assert job.output.count("sum 2 of ranks [0, 1]") == 2 * 3


def test_workers_that_know_no_notice_end_as_preempted(cluster: SlurmCluster) -> None:
    cluster.script(PREEMPTIBLE)
    job = cluster.submit(f"{BATCH}srun torshrun train.py deaf; echo ended with $?\n", "--requeue")
    job.wait_for("begins, start 0", times=2)
    cluster.call("scancel", "--signal=USR1", job.number)
    assert job.end() == "COMPLETED", job.told()
    assert "ended with 75" in job.output
    assert job.facts["Restarts"] == "0"


def test_who_cancels_a_job_is_not_defied(cluster: SlurmCluster) -> None:
    cluster.script(PREEMPTIBLE)
    job = cluster.submit(f"{BATCH}srun torshrun --requeue-on-preempt train.py\n", "--requeue")
    job.wait_for("begins, start 0", times=2)
    cluster.call("scancel", job.number)
    assert job.end() == "CANCELLED"
    job.wait_for("saved", times=2)  # they have the time that Slurm leaves, less a margin
    assert f"within {KILL_WAIT - 5} s" in job.output
    assert soon(cluster.is_idle, 30)
    assert (job.facts["JobState"], job.facts["Restarts"]) == ("CANCELLED", "0")


def test_handlers_of_a_signal_that_slurm_sends_to_all_processes_run_once(
    cluster: SlurmCluster,
) -> None:
    cluster.script(
        "import os, signal, sys, time\n"
        "def leave(*_):\n"
        "    os.write(1, b'entered\\n')\n"
        "    time.sleep(1)\n"
        "    os.write(1, b'gone\\n')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('begins\\n', end='', flush=True)\n"
        "time.sleep(120)\n"
    )
    job = cluster.submit(f"{BATCH}srun torshrun --nproc-per-node 2 train.py; echo ended with $?\n")
    job.wait_for("begins", times=4)
    cluster.call("scancel", "--signal=TERM", f"{job.number}.0")  # once, as scancel alone need not
    job.wait_for("ended with 75")
    assert job.output.count("gone") == 4
    assert job.output.count("entered") == 4, job.output


def test_a_node_is_drained(cluster: SlurmCluster) -> None:
    """Who runs there may go on to the end, and who comes waits."""
    cluster.script("import time\nprint('begins\\n', end='', flush=True)\ntime.sleep(3)\n")
    job = cluster.submit(f"{BATCH}srun torshrun train.py\n")
    job.wait_for("begins", times=2)
    told = cluster.call("torshctl", "status", f"slurm-{job.number}.0")
    assert "2 nodes" in told
    cluster.call("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    try:
        later = cluster.submit(f"{BATCH}srun torshrun train.py\n")
        assert job.end() == "COMPLETED", job.told()
        assert later.facts["JobState"] == "PENDING"
    finally:
        cluster.call("scontrol", "update", "NodeName=n2", "State=RESUME")
    assert later.end() == "COMPLETED", later.told()


def test_a_batch_script_without_srun_is_one_process(cluster: SlurmCluster) -> None:
    cluster.script(SUM)
    job = cluster.submit(f"{BATCH}torshrun --nproc-per-node 2 train.py\n")
    assert job.end() == "COMPLETED", job.told()
    assert "sum 2 of ranks [0, 1]" in job.output
    assert "on n1 only, of the job's 2 nodes, as srun did not start it (srun torshrun" in job.output


def test_two_torshruns_on_a_node_are_an_error_that_says_what_to_type(
    cluster: SlurmCluster,
) -> None:
    cluster.script(SUM)
    script = f"{BATCH}srun --ntasks-per-node=2 torshrun train.py; echo ended with $?\n"
    job = cluster.submit(script, "--ntasks-per-node=2")
    assert job.end() == "COMPLETED", job.told()
    assert "ended with 2" in job.output
    assert "sum" not in job.output
    assert "SLURM_LOCALID=1" in job.output
    advice = "srun --cpus-per-task=2 --ntasks=2 --ntasks-per-node=1 torshrun --nproc-per-node=2"
    assert f"{advice} …" in job.output
    job = cluster.submit(f"{BATCH}{advice} train.py\n", "--ntasks-per-node=2")
    assert job.end() == "COMPLETED", job.told()
    assert job.output.count("sum 4 of ranks [0, 1, 2, 3]") == 4


def test_explicit_options_switch_it_off(cluster: SlurmCluster) -> None:
    cluster.script(SUM)
    job = cluster.submit(f"{BATCH}srun torshrun --standalone train.py\n")
    assert job.end() == "COMPLETED", job.told()
    assert job.output.count("sum 1 of ranks [0]") == 2


def test_a_task_for_each_rank_needs_no_torshrun(cluster: SlurmCluster) -> None:
    """Three ranks on one node and two on the other; then all on one."""
    cluster.script(SUM)
    script = (
        f"{BATCH}srun --ntasks=5 --distribution=block python train.py\n"
        "srun --nodes=1 --ntasks=3 python train.py\n"
    )
    job = cluster.submit(script, "--ntasks-per-node=3")
    assert job.end() == "COMPLETED", job.told()
    assert job.output.count("sum 5 of ranks [0, 1, 2, 3, 4]") == 5
    assert job.output.count("sum 3 of ranks [0, 1, 2]") == 3


def test_processors_that_slurm_does_not_enforce_are_respected(cluster: SlurmCluster) -> None:
    cluster.script("import os\nprint(os.environ['OMP_NUM_THREADS'], 'threads', flush=True)\n")
    script = f"{BATCH}torshrun train.py\ntorshrun --nproc-per-node cpu train.py\n"
    job = cluster.submit(script, "--nodes=1", "--cpus-per-task=1")
    assert job.end() == "COMPLETED", job.told()
    assert job.output.count("[0] 1 threads") == 2
    assert "[1]" not in job.output


def test_tasks_of_an_array_do_not_meet(cluster: SlurmCluster) -> None:
    cluster.script(SUM)
    cluster.submit(f"{BATCH}srun torshrun train.py\n", "--array=0-1", "--output=array-%a.out")
    files = [cluster.work / f"array-{index}.out" for index in range(2)]

    def have_ended() -> bool:
        return all(f.exists() and "the job is over (succeeded)" in f.read_text() for f in files)

    assert soon(have_ended, 60), [f.exists() and f.read_text() for f in files]
    names = [re.findall(r"job (\d+), step 0", file.read_text())[0] for file in files]
    assert len(set(names)) == 2
    assert all(file.read_text().count("sum 2 of ranks [0, 1]") == 2 for file in files)
