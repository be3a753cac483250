"""What torchrun and mpiexec say of a process, as torshrun would have said it."""

from __future__ import annotations

import pytest

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.launchers import completed, meeting_point, place

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29555",
    "GROUP_WORLD_SIZE": "1",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
BY_HAND = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29555"}


def test_mpiexecs_ranks_have_a_place() -> None:
    env = WorkerEnv.from_environ(completed(MPICH))
    assert (env.rank, env.world_size, env.local_rank, env.local_world_size) == (1, 2, 1, 2)
    assert env.num_nodes == 1
    env = WorkerEnv.from_environ(completed(OPEN_MPI))
    assert (env.rank, env.world_size, env.local_rank, env.local_world_size) == (3, 4, 1, 2)
    assert env.num_nodes > 1


@pytest.mark.parametrize("environ", [{}, {"PMI_RANK": "0"}, BY_HAND, {**MPICH, **BY_HAND}])
def test_a_place_that_is_given_or_none_is_left_alone(environ: dict[str, str]) -> None:
    assert completed(environ) == environ
    assert meeting_point(environ) == ""


def test_ranks_of_one_node_meet_on_their_host() -> None:
    assert meeting_point(MPICH).startswith("unix:@torsh-")
    assert meeting_point(MPICH) == meeting_point({**MPICH, "PMI_RANK": "0"})
    assert meeting_point(TORCHRUN) == meeting_point({**TORCHRUN, "RANK": "1"})


@pytest.mark.parametrize("name", ["MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"])
def test_jobs_of_torchrun_and_their_restarts_meet_apart(name: str) -> None:
    assert meeting_point(TORCHRUN) != meeting_point({**TORCHRUN, name: "7"})


@pytest.mark.parametrize("names", [("PMI_RANK", "PMI_SIZE"), tuple(OPEN_MPI)[:2]])
def test_one_rank_alone_needs_nobody_to_say_where(names: tuple[str, str]) -> None:
    alone = dict(zip(names, ("0", "1"), strict=True))
    assert WorkerEnv.from_environ(completed(alone)).num_nodes == 1
    assert meeting_point(alone).startswith("unix:@torsh-")


def test_an_address_that_is_given_counts() -> None:
    assert meeting_point({**OPEN_MPI, "MASTER_ADDR": "a", "MASTER_PORT": "1"}) == ""


@pytest.mark.parametrize(
    ("environ", "remedy"),
    [
        (OPEN_MPI, "MASTER_ADDR"),
        ({**MPICH, "MPI_LOCALNRANKS": "1"}, "MASTER_ADDR"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MASTER_ADDR"),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "2"}, "init_method"),
    ],
)
def test_who_cannot_meet_is_told_what_to_do(environ: dict[str, str], remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        meeting_point(environ)


FLUX = {
    "FLUX_TASK_RANK": "1",
    "FLUX_JOB_SIZE": "2",
    "FLUX_TASK_LOCAL_ID": "1",
    "FLUX_JOB_NNODES": "1",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
PALS = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}


@pytest.mark.parametrize("environ", [FLUX, PALS])
def test_ranks_of_flux_and_cray_know_what_is_local(environ: dict[str, str]) -> None:
    own = completed(environ)
    assert (own["LOCAL_RANK"], own["LOCAL_WORLD_SIZE"], own["GROUP_WORLD_SIZE"]) == ("1", "2", "1")
    assert meeting_point(environ).startswith("unix:@torsh-")


def test_what_is_local_is_not_made_up() -> None:
    """Or all ranks of a host would take the same GPU."""
    pmi = {"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "a"}
    assert "LOCAL_RANK" not in place(pmi)
    assert place(pmi)["LOCAL_WORLD_SIZE"] == "0"
    assert completed({**pmi, "LOCAL_RANK": "1"})["LOCAL_RANK"] == "1"
    several = {**FLUX, "FLUX_JOB_NNODES": "2", "FLUX_JOB_SIZE": "4"}
    assert place(several)["LOCAL_WORLD_SIZE"] == "0"


STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "3",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "2",
}


def test_tasks_of_srun_on_one_node() -> None:
    own = completed(STEP)
    assert (own["RANK"], own["WORLD_SIZE"], own["LOCAL_RANK"]) == ("2", "3", "2")
    assert meeting_point(STEP) == meeting_point({**STEP, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert meeting_point(STEP) != meeting_point({**STEP, "SLURM_STEP_ID": "1"})
    assert meeting_point(STEP) != meeting_point({**STEP, "SLURM_RESTART_COUNT": "1"})


def test_srun_with_pmi2_is_no_mpiexec() -> None:
    pmi = {"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_FD": "10"}
    assert place({**STEP, **pmi}) == place(STEP)
    assert meeting_point({**STEP, **pmi}) == meeting_point(STEP)
    assert place({**STEP, **PALS, "PMI_SIZE": "3", "PMI_RANK": "2"}) == place(STEP)
    assert place({**STEP, **FLUX})["WORLD_SIZE"] == "2"  # in an instance that srun has started
    assert place({**STEP, **MPICH})["WORLD_SIZE"] == "2"  # mpiexec in a step


def test_tasks_of_srun_on_unequal_nodes() -> None:
    several = {
        **STEP,
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "3,1",
        "SLURM_NODEID": "1",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "0",
        "MASTER_ADDR": "n1",
    }
    own = completed(several)
    assert (own["LOCAL_WORLD_SIZE"], own["GROUP_RANK"], own["RANK"]) == ("1", "1", "3")
    assert meeting_point(several) == ""


@pytest.mark.parametrize(
    "environ", [{**STEP, **BY_HAND}, {**STEP, "SLURM_STEP_TASKS_PER_NODE": "1"}]
)
def test_a_step_does_not_count_where_the_rank_is_given_or_one_task_is_all(
    environ: dict[str, str],
) -> None:
    given = {**environ, "SLURM_PROCID": "0"}
    assert completed(given) == given
    assert meeting_point(given) == ""
