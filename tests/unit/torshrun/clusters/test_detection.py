"""What environments of schedulers and launchers are taken for.

Slurm's are recorded from Debian's 22.05; Open MPI's and MPICH's are those of PyPI's packages, PBS's
those of OpenPBS's documentation of job scripts and pbsdsh, LSF's those of IBM's list of variables
for jobs, SkyPilot's and dstack's those of their pages about distributed jobs, and Kubernetes' those
of its pages about pods and Indexed Jobs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from torsh_runtime import slurm
from torsh_runtime.errors import ConfigError
from torsh_runtime.slurm import Reply
from torshrun.clusters.detection import RealMachine, detect
from torshrun.clusters.hints import Hints
from torshrun.clusters.slurm_job import meeting_place, requeue

BATCH = {
    "SLURM_CLUSTER_NAME": "torsh",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURMD_NODENAME": "n1",
}
STEP = {
    **BATCH,
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURMD_NODENAME": "n2",
}
PBS = {
    "PBS_ENVIRONMENT": "PBS_BATCH",
    "PBS_JOBID": "8.server",
    "PBS_NODEFILE": "/var/spool/pbs/aux/8.server",
    "PBS_NODENUM": "0",
    "PBS_TASKNUM": "1",
    "NCPUS": "4",
}
LSF = {
    "LSB_JOBID": "21",
    "LSB_JOBINDEX": "0",
    "LSB_MCPU_HOSTS": "hostA 4 hostB 4",
    "LSB_HOSTS": "hostA hostA hostA hostA hostB hostB hostB hostB",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "4",
    "SKYPILOT_TASK_ID": "sky-2026-11-27-18-00-00-123456_mine_1",
}
DSTACK = {
    "DSTACK_RUN_NAME": "train-distrib",
    "DSTACK_NODE_RANK": "1",
    "DSTACK_NODES_NUM": "2",
    "DSTACK_MASTER_NODE_IP": "10.0.0.1",
    "DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2",
    "DSTACK_GPUS_PER_NODE": "4",
    "DSTACK_GPUS_NUM": "8",
}
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "jupyter-bob-3"}


class Machine:
    """Answers as a machine would that has these files and this Slurm."""

    def __init__(self, files: Mapping[str, str] = {}, **answers: str) -> None:
        self.files = {"/var/spool/pbs/aux/8.server": "a\na\nb\nb\n", **files}
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []

    def scontrol(self, *words: str) -> Reply:
        self.asked.append(words)
        text = next((self.answers[word] for word in words if word in self.answers), "")
        return Reply("", text) if text.startswith("refused:") else Reply(text)

    def read(self, path: str) -> str:
        return self.files.get(path, "")

    def launcher(self, variable: str) -> str:
        return f"400-{variable}"

    def now(self) -> float:
        return 1_000_000.0


def found(environ: Mapping[str, str], machine: Machine | None = None, kind: str = "auto") -> Hints:
    hints = detect(kind, environ, machine or Machine())
    assert hints is not None
    return hints


def texts(hints: Hints) -> dict[str, str]:
    return {key: hint.text for key, hint in hints.options.items()}


def test_a_machine_without_a_scheduler_tells_nothing() -> None:
    assert detect("auto", {"PATH": "/bin"}, Machine()) is None


def test_a_step_of_slurm() -> None:
    node = "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=vm"
    machine = Machine(config="KillWait                = 30 sec\n", node=node)
    hints = found({**STEP, "SLURM_JOB_END_TIME": "1000600", "SLURM_GPUS_ON_NODE": "4"}, machine)
    assert texts(hints) == {
        "nnodes": "2",
        "node_rank": "1",
        "master_addr": "10.0.0.1",
        "master_port": str(slurm.port("slurm-17.3")),
        "nproc_per_node": "4",
        "run_id": "slurm-17.3",
        "shutdown_timeout": "25",
        "time_limit": "600",
    }
    assert hints.found == ("job 17", "step 3: node 1 of 2")
    assert hints.requeues == ""  # node 0 asks
    assert not hints.signals_reach_workers


def test_a_batch_script_of_slurm_is_alone_and_is_told_so() -> None:
    hints = found(BATCH, Machine(config="ProctrackType = proctrack/linuxproc\n"))
    assert texts(hints) == {"run_id": "slurm-17", "shutdown_timeout": "25"}
    assert "on n1 only, of the job's 2 nodes" in hints.found[-1]
    assert hints.requeues == "17"
    assert hints.signals_reach_workers


def test_a_requeued_job_has_the_same_name() -> None:
    first, second = found(STEP), found({**STEP, "SLURM_RESTART_COUNT": "2"})
    assert second.run_id == first.run_id
    assert "requeued 2 time(s)" in second.found[0]


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ("JobId=17 TimeLimit=UNLIMITED EndTime=2030-01-01T00:00:00", None),
        ("JobId=17 TimeLimit=00:10:00 EndTime=Unknown", None),
        ("", None),
        ("JobId=17 TimeLimit=00:10:00 EndTime=1970-01-01T00:00:00", "0"),
    ],
)
def test_the_end_of_an_allocation(told: str, left: str | None) -> None:
    assert texts(found(STEP, Machine(job=told))).get("time_limit") == left


def test_several_torshruns_on_a_node_are_a_mistake() -> None:
    wrong = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    hints = found({**STEP, **wrong, "SLURM_PROCID": "3", "SLURM_LOCALID": "1"})
    assert "SLURM_LOCALID=1" in hints.mistake
    assert hints.nnodes is None
    for more, advice in (
        ({"SLURM_CPUS_PER_TASK": "4"}, "srun --cpus-per-task=8 --ntasks=2 --ntasks-per-node=1"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3,1"}, "srun --ntasks=2 --ntasks-per-node=1"),
        ({"SLURM_PTY_PORT": "1"}, "srun --overlap --cpus-per-task=2 --ntasks=2"),
    ):
        assert advice in found({**STEP, **wrong, **more, "SLURM_LOCALID": "1"}).mistake


def test_pbs() -> None:
    hints = found({**PBS, "PBS_NODENUM": "1"})
    place = {"nnodes": "2", "node_rank": "1", "master_addr": "a"}
    assert texts(hints).items() >= place.items()
    assert texts(found({**PBS, "PBS_TASKNUM": "2"}))["node_rank"] == "0"
    assert hints.run_id == found(PBS).run_id


def test_a_job_script_of_pbs_is_alone() -> None:
    hints = found(PBS)
    assert hints.nnodes is None
    assert "pbsdsh" in hints.found[-1]


@pytest.mark.parametrize("task", [{"PBS_TASKNUM": "146"}, {"PBS_NODENUM": "1"}])
def test_torque_does_not_tell_a_script_from_a_task_of_pbsdsh(task: dict[str, str]) -> None:
    hints = found({**PBS, "PBS_VERSION": "TORQUE-6.1.2", **task})
    assert hints.nnodes is None
    assert "Torque does not tell more (--nnodes, --node-rank" in hints.found[-1]


def test_pbs_tasks_that_are_more_than_hosts_are_a_mistake() -> None:
    assert "PBS_NODENUM=2" in found({**PBS, "PBS_NODENUM": "2"}).mistake


def test_lsf() -> None:
    hints = found({**LSF, "LSF_PM_TASKID": "2"})
    place = {"nnodes": "2", "node_rank": "1", "master_addr": "hostA", "run_id": "lsf-21"}
    assert texts(hints).items() >= place.items()
    assert found(LSF).nnodes is None
    assert texts(found({**LSF, "LSB_JOBINDEX": "3"}))["run_id"] == "lsf-21[3]"
    assert "LSF_PM_TASKID=3" in found({**LSF, "LSF_PM_TASKID": "3"}).mistake


def test_lsf_with_too_many_hosts_for_a_variable() -> None:
    given = {"LSB_JOBID": "21", "LSB_DJOB_HOSTFILE": "/job/hosts", "LSF_PM_TASKID": "1"}
    hints = found(given, Machine({"/job/hosts": "a\na\nb\nc\n"}))
    assert texts(hints)["nnodes"] == "3"


def test_mpiexec_on_one_host() -> None:
    hints = found(HYDRA)
    place = {"nnodes": "2", "node_rank": "1", "master_addr": "127.0.0.1"}
    assert texts(hints).items() >= place.items()
    assert texts(hints)["master_port"] == str(slurm.port("mpi-400-PMI_RANK"))


def test_mpiexec_on_several_hosts_meets_on_the_schedulers_first() -> None:
    hints = found({**PBS, **OPEN_MPI})
    assert texts(hints).items() >= {"nnodes": "2", "node_rank": "1", "master_addr": "a"}.items()
    assert (hints.cluster, texts(hints)["run_id"]) == ("pbs", "pbs-8.server")
    alone = found(OPEN_MPI)  # nobody knows where rank 0 is
    assert alone.nnodes is not None
    assert alone.master_addr is None


def test_crays_mpiexec_is_one_and_srun_is_none() -> None:
    pals = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_LOCAL_RANK": "0", "PMI_LOCAL_SIZE": "1"}
    hints = found({**PBS, **pals})
    assert texts(hints).items() >= {"nnodes": "2", "node_rank": "1", "master_addr": "a"}.items()
    assert found({**STEP, **pals}).found[-1] == "step 3: node 1 of 2"


def test_jsrun_starts_nothing_on_the_launch_host() -> None:
    job = {**LSF, "LSB_MCPU_HOSTS": "batch5 1 hostA 42 hostB 42", **OPEN_MPI}
    assert texts(found({**job, "JSM_NAMESPACE_RANK": "1"}))["master_addr"] == "hostA"
    assert texts(found(job))["master_addr"] == "batch5"
    file = {**LSF, "LSB_MCPU_HOSTS": "", "LSB_DJOB_HOSTFILE": "/h", "JSM_NAMESPACE_RANK": "1"}
    machine = Machine({"/h": "batch5\nhostA\nhostA\nhostB\nhostB\n"})
    assert texts(found({**file, **OPEN_MPI}, machine))["master_addr"] == "hostA"
    even = {**job, "LSB_MCPU_HOSTS": "hostA 1 hostB 1", "JSM_NAMESPACE_RANK": "1"}
    assert texts(found(even))["master_addr"] == "hostA"


def test_tasks_of_an_array_do_not_meet_in_one_place() -> None:
    """Also where they have the same first host."""
    for one, other in (
        ({**LSF, "LSB_JOBINDEX": "3"}, {**LSF, "LSB_JOBINDEX": "4"}),
        ({**PBS, "PBS_JOBID": "8[3].server"}, {**PBS, "PBS_JOBID": "8[4].server"}),
        ({**BATCH, "SLURM_JOB_ID": "17"}, {**BATCH, "SLURM_JOB_ID": "18"}),
    ):
        first, second = (texts(found({**job, **OPEN_MPI})) for job in (one, other))
        assert first["master_addr"] == second["master_addr"]
        assert first["master_port"] != second["master_port"]
        assert first["run_id"] != second["run_id"]


def test_mpiexec_inside_slurm_is_no_step() -> None:
    """Its processes have the variables of the step of its own daemons, but where it forked them."""
    step = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"}
    forked, remote = found({**BATCH, **OPEN_MPI}), found({**STEP, **step, **OPEN_MPI})
    for key in ("run_id", "nnodes", "node_rank", "master_addr", "master_port"):
        assert texts(forked)[key] == texts(remote)[key]


def test_srun_with_pmi_is_a_step() -> None:
    assert found({**STEP, "PMI_RANK": "1", "PMI_SIZE": "2"}).found[-1] == "step 3: node 1 of 2"


def test_a_list_of_hosts_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("".join(f"node{number}.example.org\n" * 64 for number in range(1000)))
    assert nodes.stat().st_size > 1 << 20
    text = RealMachine().read(str(nodes))
    assert len(set(text.split())) == 1000
    os.truncate(nodes, (64 << 20) + 1)
    with pytest.raises(ConfigError, match="has more than 64 MiB"):
        RealMachine().read(str(nodes))


def test_kubernetes_guesses_nothing_from_names() -> None:
    assert texts(found(POD)) == {"shutdown_timeout": "25"}
    array = {**POD, "JOB_COMPLETION_INDEX": "3"}
    assert texts(found(array)) == {"shutdown_timeout": "25", "node_rank": "3"}


@pytest.mark.parametrize(
    "environ",
    [
        {**STEP, "SLURM_JOB_ID": "--help"},
        {**STEP, "SLURM_JOB_ID": "7\x1b[31m"},
        {**STEP, "SLURM_JOB_ID": "\udcff"},
        {**PBS, "PBS_JOBID": "8.server\n"},
        {**LSF, "LSB_JOBID": "9" * 5000},
    ],
)
def test_what_is_no_job_is_none(environ: dict[str, str]) -> None:
    assert detect("auto", environ, Machine()) is None


def test_a_torshrun_in_a_worker_is_no_node_of_the_job() -> None:
    assert detect("auto", {**STEP, "TORSH_STORE_ENDPOINT": "unix:@x"}, Machine()) is None
    assert detect("auto", {**SKYPILOT, "TORCHELASTIC_RUN_ID": "torchruns"}, Machine()) is None


def test_one_cluster_alone_can_be_asked_for() -> None:
    both = {**PBS, **POD}
    assert found(both, kind="kubernetes").cluster == "kubernetes"
    assert detect("none", both, Machine()) is None
    with pytest.raises(ConfigError, match="--scheduler slurm"):
        detect("slurm", both, Machine())


def test_a_job_is_requeued_only_while_it_runs() -> None:
    for told, said in (
        ("JobId=17 JobState=RUNNING Requeue=1", "asked to requeue job 17"),
        ("JobId=17 JobState=CANCELLED Requeue=1", "is CANCELLED"),
        ("JobId=17 JobState=RUNNING Requeue=0", "sbatch --requeue"),
        ("JobId=18 JobState=RUNNING Requeue=1", "does not report its state"),
        ("", "does not report its state"),
        ("refused: no such job", "does not report its state: refused: no such job"),
    ):
        machine = Machine(job=told)
        assert said in requeue("17", machine)
        assert (("requeue", "17") in machine.asked) == ("asked" in said)


def test_a_requeue_that_slurm_refuses_is_told_with_its_reason() -> None:
    machine = Machine(
        job="JobId=17 JobState=RUNNING Requeue=1", requeue="refused: presently disabled"
    )
    said = requeue("17", machine)
    assert said.startswith("error: asking Slurm to requeue job 17 has failed")
    assert said.endswith("presently disabled")


ARRAY = """\
JobId=24 ArrayJobId=17 ArrayTaskId=3 JobName=JobState=FAILED Requeue=0
   UserId=ada(7) GroupId=ada(7) MCS_label=N/A
   JobState=COMPLETED Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:01:00 TimeLimit=00:30:00 TimeMin=N/A
   StartTime=1970-01-01T00:00:00 EndTime=1970-01-01T00:01:00 Deadline=N/A
   NodeList=n7

JobId=17 ArrayJobId=17 ArrayTaskId=4 ArrayTaskThrottle=2 JobName=a run JobState=FAILED Requeue=0
   UserId=ada(7) GroupId=ada(7) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:01:00 TimeLimit=1-00:30:00 TimeMin=N/A
   StartTime=2026-01-01T00:00:00 EndTime=2026-01-02T00:30:00 Deadline=N/A
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[3-4]
   Command=/home/ada/JobState=FAILED NodeList=n9
"""
"""What scontrol tells of job 17, an array; one task has the array's id, another has ended."""


def test_a_task_of_an_array_is_found_among_all_and_requeued_alone() -> None:
    """The environment is no guide: a job that a task of an array has submitted inherits its."""
    machine = Machine(job=ARRAY, hostnames="n3\nn4\n")
    assert "asked to requeue job 17_4" in requeue("17", machine)
    assert machine.asked[-1] == ("requeue", "17_4")
    assert "17_3 is not requeued: it is COMPLETED" in requeue("24", machine)
    assert meeting_place("slurm-17.0", machine) == f"n3:{slurm.port('slurm-17.0')}"
    ends = time.mktime((2026, 1, 2, 0, 30, 0, 0, 0, -1))
    left = found({**STEP, "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}, machine)
    assert texts(left)["time_limit"] == f"{ends - machine.now():.0f}"


def test_a_component_of_a_heterogeneous_job_is_found_by_its_own_id() -> None:
    leader = "JobId=17 HetJobId=17 HetJobOffset=0 JobName=x\n   JobState=RUNNING\n   NodeList=a\n"
    other = "JobId=18 HetJobId=17 HetJobOffset=1 JobName=x\n   JobState=RUNNING\n   NodeList=b\n"
    machine = Machine(job=f"{leader}\n{other}")
    assert meeting_place("slurm-18.0", machine).startswith("b:")
    assert "asked to requeue job 17" in requeue("17", machine)


@pytest.mark.parametrize("nodes", ["(null)", ""])
def test_a_job_that_waits_has_no_place_yet(nodes: str) -> None:
    machine = Machine(job=f"JobId=17 JobState=PENDING NodeList={nodes}")
    assert meeting_place("slurm-17.0", machine) == ""


def test_a_shell_that_salloc_has_started_is_one_process() -> None:
    step = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"}
    hints = found({**STEP, **step, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"})
    assert texts(hints)["run_id"] == "slurm-17"
    assert "of the job's 2 nodes, as srun did not start it (srun --overlap" in hints.found[-1]


def test_on_a_login_host_nodes_of_the_job_stay_idle() -> None:
    environ = {name: value for name, value in BATCH.items() if name != "SLURMD_NODENAME"}
    assert "on this host, as srun did not start it on the job's 2 nodes" in found(environ).found[-1]
    one = found({**environ, "SLURM_JOB_NUM_NODES": "1"}).found[-1]
    assert one.endswith("on the job's node (srun --ntasks=1 --ntasks-per-node=1 torshrun …)")


def test_skypilot_and_dstack() -> None:
    place = {"nnodes": "2", "node_rank": "1", "master_addr": "10.0.0.1", "nproc_per_node": "4"}
    sky, dstack = found(SKYPILOT), found(DSTACK)
    name = SKYPILOT["SKYPILOT_TASK_ID"]
    assert texts(sky) == {**place, "run_id": name, "master_port": str(slurm.port(name))}
    assert sky.found == (f"job {name}", "node 1 of 2")
    name = "dstack-train-distrib"
    assert texts(dstack) == {
        **place,
        "run_id": name,
        "master_port": str(slurm.port(name)),
        "shutdown_timeout": "5",
    }
    assert not sky.shares_home
    assert not dstack.shares_home


def test_skypilot_and_dstack_inside_what_they_start_jobs_with() -> None:
    """Both start pods, and SkyPilot steps of Slurm; mpiexec hands their variables on to this host's
    processes alone, so it does not count what they say.
    """
    for orchestrator in (SKYPILOT, DSTACK):
        for around in (POD, STEP):
            assert found({**around, **orchestrator}) == found(orchestrator)
        assert found({**orchestrator, **OPEN_MPI}) == found(OPEN_MPI)
        assert found({**POD, **orchestrator}, kind="kubernetes").cluster == "kubernetes"


def test_one_node_of_skypilot_or_dstack() -> None:
    sky = {**SKYPILOT, "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"}
    dstack = {"DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": "1", "DSTACK_NODES_IPS": ""}
    for one in (
        {**sky, "SKYPILOT_NODE_IPS": "10.0.0.1"},
        {**DSTACK, **dstack, "DSTACK_NODES_IPS": "10.0.0.1"},
        dstack,
    ):
        hints = found(one)
        assert hints.nnodes is None
        assert hints.found[-1] == "one node"


def test_what_skypilot_did_not_always_tell() -> None:
    """Earlier versions told no number of nodes; without GPUs there is one worker."""
    older = {key: SKYPILOT[key] for key in ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")}
    hints = found({**older, "SKYPILOT_NUM_GPUS_PER_NODE": "0"})
    assert texts(hints).keys() == {"nnodes", "node_rank", "master_addr", "master_port"}
    assert texts(hints)["nnodes"] == "2"
    other = found({**older, "SKYPILOT_NODE_IPS": "10.0.0.1 10.0.0.3"})  # not of the same job
    assert texts(other)["master_port"] != texts(hints)["master_port"]


@pytest.mark.parametrize(
    ("orchestrator", "changed", "told"),
    [
        (
            SKYPILOT,
            {"SKYPILOT_NODE_RANK": "first"},
            "SKYPILOT_NODE_RANK='first': that is not",
        ),
        (SKYPILOT, {"SKYPILOT_NODE_RANK": ""}, "SKYPILOT_NODE_RANK=''"),
        (SKYPILOT, {"SKYPILOT_NODE_RANK": "-1"}, "SKYPILOT_NODE_RANK='-1'"),
        (SKYPILOT, {"SKYPILOT_NODE_RANK": "2"}, "they contradict each other"),
        (SKYPILOT, {"SKYPILOT_NUM_NODES": "3"}, "they contradict each other"),
        (SKYPILOT, {"SKYPILOT_NUM_NODES": "2e0"}, "SKYPILOT_NUM_NODES='2e0'"),
        (SKYPILOT, {"SKYPILOT_NODE_IPS": "10.0.0.1;\n$(id)"}, "that is not a list of addresses"),
        (SKYPILOT, {"SKYPILOT_NODE_IPS": ""}, "does not say where the 2 nodes"),
        (DSTACK, {"DSTACK_NODES_NUM": "0"}, "they contradict each other"),
        (DSTACK, {"DSTACK_MASTER_NODE_IP": ""}, "DSTACK_MASTER_NODE_IP='': it does not say"),
        (DSTACK, {"DSTACK_MASTER_NODE_IP": "10.0.0.9"}, "the first node is not one of the nodes"),
        (DSTACK, {"DSTACK_MASTER_NODE_IP": "\x1b[2J"}, r"'\x1b[2J': that is not an address"),
        (DSTACK, {"DSTACK_NODES_IPS": "x" * 9999}, "that is not a list of addresses"),
    ],
)
def test_variables_of_orchestrators_that_cannot_be(
    orchestrator: dict[str, str], changed: dict[str, str], told: str
) -> None:
    environ = {**orchestrator, **changed}
    with pytest.raises(ConfigError) as raised:
        found(environ)
    assert told in str(raised.value)
    assert "--scheduler none ignores these variables" in str(raised.value)
    assert len(str(raised.value)) < 1000
    assert detect("none", environ, Machine()) is None


@pytest.mark.parametrize("name", ["$(id)", "a b", "\x1b[2J", "x" * 999])
def test_a_name_that_none_of_them_gives_a_job_is_not_taken(name: str) -> None:
    for hints in (
        found({**SKYPILOT, "SKYPILOT_TASK_ID": name}),
        found({**DSTACK, "DSTACK_RUN_NAME": name}),
    ):
        assert hints.run_id is None
        assert hints.found[0] == "a job"
