"""What a cluster tells, beside what the user says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from torsh_runtime.errors import ConfigError
from torsh_runtime.slurm import Reply
from torshrun.clusters.user_key import job_secret
from torshrun.config.job import Address
from torshrun.config.print_config import show
from torshrun.config.request import Request, gather
from torshrun.config.resolve import Resolution, resolve
from torshrun.config.surroundings import look_around, look_around_for_hosts

STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
SEVERAL = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
POD = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "JOB_COMPLETION_INDEX": "3",
    "TORSH_RDZV_ENDPOINT": "job-0.job:29500",
    "TORSH_RDZV_ID": "uid",
    "TORSH_SECRET": "an example of a secret",
}


class Silent:
    """A machine on which nothing can be asked."""

    def scontrol(self, *words: str) -> Reply:
        return Reply("")

    def read(self, path: str) -> str:
        return ""

    def launcher(self, variable: str) -> str:
        return "1"

    def now(self) -> float:
        return 0.0


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def asked(environ: Mapping[str, str], **options: str) -> Request:
    return look_around(gather(options, __file__, (), environ), environ, Silent())


def made(environ: Mapping[str, str], **options: str) -> Resolution:
    return resolve(asked(environ, **options), environ)


def test_steps_of_one_node_each_may_be_the_nodes_of_a_job(home: dict[str, str]) -> None:
    one = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    place = {"SLURM_STEP_NODELIST": "n2", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
    by_hand = {"nnodes": "2", "node_rank": "1", "master_addr": "n1"}
    request = asked({**STEP, **one, **place, **home}, **by_hand)
    assert not request.knows("run_id")
    assert asked({**STEP, **one, **place, **home})["run_id"] == "slurm-17.0"


def test_pods_have_their_ranks_however_their_number_is_said(home: dict[str, str]) -> None:
    assert asked({**POD, **home}, nnodes="4")["node_rank"] == 3
    assert asked({**POD, **home, "PET_NNODES": "4"})["node_rank"] == 3
    assert asked({**POD, **home})["node_rank"] == 0


def test_nothing_has_to_be_said(home: dict[str, str]) -> None:
    job, notes = made({**STEP, **home})
    how = job.rendezvous
    assert how is not None
    assert (job.min_nodes, job.max_nodes, how.node_rank) == (2, 2, 1)
    assert how.endpoints[0].host == "n1"
    key = Path(home["HOME"], ".config/torshrun/key")
    assert how.secret == job_secret(key.read_text().strip(), "slurm-17.0")
    assert (job.run_id, job.shutdown_timeout) == ("slurm-17.0", 25.0)
    (note,) = notes
    assert note == (
        f"slurm: job 17, step 0: node 1 of 2, meeting at n1:{how.endpoints[0].port}, "
        f"with a secret made of {key}"
    )


def test_where_each_value_comes_from(home: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("shutdown_timeout: 9\n")
    environ = {**STEP, **home, "PET_ROLE": "r", "TORSH_MASTER_PORT": "4000"}
    lines = show(asked(environ, config=str(file), run_id="mine")).splitlines()
    origins = {line.split(":")[0]: line.split("  # ")[-1] for line in lines if "  # " in line}
    assert origins["run_id"] == "command line"
    assert origins["shutdown_timeout"] == f"{file}:1"
    assert origins["master_port"] == "TORSH_MASTER_PORT"
    assert origins["#nnodes"] == "slurm: SLURM_STEP_NUM_NODES"
    assert origins["#max_restarts"] == "default"


@pytest.mark.parametrize("options", [{}, {"nnodes": "1:2"}, {"max_restarts": "3", "role": "r"}])
def test_what_was_printed_in_one_allocation_is_the_same_request_in_another(
    options: dict[str, str], home: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(show(asked({**STEP, **home}, **options)))
    other = {
        **{**STEP, **home, "SLURM_JOB_ID": "18", "SLURM_STEP_NODELIST": "m[4-5]"},
        **{"SLURM_NODEID": "0", "SLURM_PROCID": "0"},
    }
    request = gather({"config": str(file)}, None, (), other)
    again = resolve(look_around(request, other, Silent()), other)
    assert again == made(other, **options)
    assert again.job.run_id == "slurm-18.0"
    assert again.job.rendezvous is not None
    assert again.job.rendezvous.endpoints[0].host == "m4"


def test_what_was_printed_in_an_allocation_asks_for_nothing_of_it_elsewhere(
    home: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(show(asked({**STEP, **home}, max_restarts="3")))
    job, notes = made(home, config=str(file))
    assert (job.rendezvous, job.max_restarts, job.shutdown_timeout) == (None, 3, 30.0)
    assert not job.run_id.startswith("slurm")
    assert notes == ()


@pytest.mark.parametrize(
    "options",
    [{"standalone": "true"}, {"nnodes": "1"}, {"scheduler": "none"}],
)
def test_explicit_sizes_switch_it_off(options: dict[str, str], home: dict[str, str]) -> None:
    for environ in (STEP, SEVERAL):
        job, _ = made({**environ, **home}, **options)
        assert job.rendezvous is None
    assert not Path(home["HOME"], ".config").exists()


def test_a_classic_script_means_what_it_did(home: dict[str, str]) -> None:
    options = {"nnodes": "2", "rdzv_backend": "c10d", "rdzv_endpoint": "n1:29500", "run_id": "7"}
    job, notes = made({**STEP, **home}, **options)
    assert job.rendezvous is not None
    assert job.rendezvous.endpoints == (Address("n1", 29500),)
    assert job.rendezvous.backend == "tcp"
    assert job.run_id == "7"
    assert "meeting" not in notes[0]
    assert not any("no effect" in note for note in notes)


def test_a_number_of_nodes_that_may_vary_has_no_fixed_ranks(home: dict[str, str]) -> None:
    job, notes = made({**STEP, **home}, nnodes="1:2")
    how = job.rendezvous
    assert how is not None
    assert (how.backend, how.node_rank, job.min_nodes, job.max_nodes) == ("tcp", None, 1, 2)
    assert how.endpoints == made({**STEP, **home})[0].rendezvous.endpoints  # type: ignore[union-attr]
    assert how.secret
    assert f"meeting at n1:{how.endpoints[0].port}" in notes[0]
    with pytest.raises(ConfigError, match="has to say where they meet"):
        made({**STEP, **home}, nnodes="1:3")


def test_a_port_that_is_taken_can_be_replaced_alone(home: dict[str, str]) -> None:
    job, notes = made({**STEP, **home}, master_port="4000")
    assert job.rendezvous is not None
    assert job.rendezvous.endpoints == (Address("n1", 4000),)
    assert "meeting at n1:4000" in notes[0]


def test_a_mistake_is_an_error_unless_the_user_says_what_holds(home: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="needs one, which starts its workers"):
        asked({**SEVERAL, **home})
    with pytest.raises(ConfigError, match="needs one"):
        asked({**SEVERAL, **home}, max_restarts="3")


def test_a_secret_that_is_given_is_the_one(home: dict[str, str]) -> None:
    job, _ = made({**STEP, **home, "TORSH_SECRET": "an example of a secret"})
    assert job.rendezvous is not None
    assert job.rendezvous.secret == "an example of a secret"
    assert not Path(home["HOME"], ".config").exists()


def test_without_a_private_place_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    job, notes = made({**STEP, "HOME": str(tmp_path / "file")})
    assert job.rendezvous is not None
    assert job.rendezvous.secret == ""
    assert any("no secret of its own" in note and "--secret-file" in note for note in notes)


def test_a_home_that_is_no_path_is_said_in_one_line() -> None:
    job, notes = made({**STEP, "HOME": "relative"})
    assert job.rendezvous is not None
    assert job.rendezvous.secret == ""
    assert any("(HOME=relative: it is not an absolute path" in note for note in notes)


def test_a_key_that_others_can_read_is_an_error(home: dict[str, str]) -> None:
    made({**STEP, **home})
    Path(home["HOME"], ".config/torshrun/key").chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        made({**STEP, **home})


def for_hosts(environ: Mapping[str, str], **options: str) -> Request:
    request = gather({**options, "hostfile": "hosts"}, __file__, (), environ)
    return look_around_for_hosts(request, environ, Silent())


def test_hosts_that_are_listed_have_the_jobs_name_and_grace_and_nothing_of_its_nodes(
    home: dict[str, str],
) -> None:
    batch = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8"}
    request = for_hosts({**batch, **home}, requeue_on_preempt="true")
    assert (request["run_id"], request["shutdown_timeout"]) == ("slurm-17", 25.0)
    for key in ("nnodes", "node_rank", "nproc_per_node", "secret_file"):
        assert not request.knows(key)
    job, notes = resolve(request, {**batch, **home})
    assert job.requeues == "17"
    assert notes == ("slurm: job 17",)
    assert not Path(home["HOME"], ".config").exists()
    assert for_hosts({**batch, **home}, scheduler="none").hints is None
    assert for_hosts(home).hints is None
    with pytest.raises(ConfigError, match="the environment has none of its variables"):
        for_hosts(home, scheduler="slurm")


@pytest.mark.parametrize("environ", [STEP, SEVERAL])
def test_one_torshrun_alone_starts_a_job_on_hosts_that_are_listed(
    environ: dict[str, str], home: dict[str, str]
) -> None:
    with pytest.raises(
        ConfigError, match=r"^--hostfile: slurm has started several torshruns.*once"
    ):
        for_hosts({**environ, **home})


def test_a_pod_has_the_rank_of_its_index_and_the_rest_from_its_manifest() -> None:
    job, notes = made({**POD, "TORSH_NNODES": "4"})
    assert job.rendezvous is not None
    assert job.rendezvous.node_rank == 3
    assert job.rendezvous.endpoints == (Address("job-0.job", 29500),)
    assert job.rendezvous.secret == POD["TORSH_SECRET"]
    assert notes == ("kubernetes: pod 3 of an Indexed Job",)
    single, _ = made({**POD, "TORSH_NNODES": "1"})
    assert single.rendezvous is None
    explicit, _ = made({**POD, "TORSH_NNODES": "4", "TORSH_NODE_RANK": "2"})
    assert explicit.rendezvous is not None
    assert explicit.rendezvous.node_rank == 2


VOLCANO = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0"}
FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_JOB_ID": "f1"}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
OF_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        (VOLCANO, "--nnodes=$WORLD_SIZE --node-rank=$RANK --master-addr=$MASTER_ADDR"),
        ({**VOLCANO, **OF_POD}, "--nnodes=$WORLD_SIZE --node-rank=$RANK"),
        (FLUX, "bash -c 'torshrun --nnodes=$FLUX_JOB_SIZE --node-rank=$FLUX_TASK_RANK"),
        (SAGEMAKER, "--nnodes=2 --node-rank=1 --master-addr=algo-1"),
        (
            {"NHOSTS": "2", "PE_HOSTFILE": "/spool/pe"},
            "--hostfile=<(awk '{print $1, \"slots=\" $2}'",
        ),
    ],
)
def test_who_is_numbered_by_others_is_told_that_it_is_alone(
    environ: dict[str, str], options: str
) -> None:
    job, notes = made(environ)
    assert job.rendezvous is None
    assert "a job of its own, on this node only" in notes[-1]
    assert options in notes[-1]
    for said in ({"nnodes": "1"}, {"standalone": "true"}, {"scheduler": "none"}):
        assert not any("of its own, on" in note for note in made(environ, **said).notes)
    assert made({**environ, "TORCHELASTIC_RUN_ID": "outer"}).notes == ()


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"NHOSTS": "1", "PE_HOSTFILE": "/spool/pe"},
        {"RANK": "one", "WORLD_SIZE": "9" * 5000},
        {**SAGEMAKER, "SM_CURRENT_HOST": "algo-3"},
        {**SAGEMAKER, "SM_HOSTS": "[" * 60000},
        {**SAGEMAKER, "SM_HOSTS": '["algo-2"]'},
        {**SAGEMAKER, "SM_HOSTS": '{"algo-2": 1}'},
        {**SAGEMAKER, "SM_HOSTS": '["algo-2", 1]'},
        {**SAGEMAKER, "SM_HOSTS": '["algo-2\\u001b[31m", "algo-2"]'},
    ],
)
def test_numbers_that_tell_of_no_other_node(environ: dict[str, str]) -> None:
    assert made(environ).notes == ()


def test_a_pod_whose_manifest_does_not_say_how_many_there_are_is_alone() -> None:
    job, notes = made({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "JOB_COMPLETION_INDEX": "3"})
    assert job.rendezvous is None
    assert notes == ("kubernetes: pod 3 of an Indexed Job, with a job of its own",)


def test_a_place_to_meet_is_called_as_other_hosts_know_it(home: dict[str, str]) -> None:
    """SkyPilot's guide calls it localhost on the node that serves the store."""
    sky = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", **home}
    for host in ("localhost", "127.0.0.1", "[::1]"):
        place = {"rdzv_backend": "tcp", "rdzv_endpoint": f"{host}:29500"}
        job, _ = made(sky, **place)
        assert job.rendezvous is not None
        assert job.rendezvous.endpoints == (Address("10.0.0.1", 29500),)
    for other in (
        {**place, "rdzv_endpoint": "10.0.0.7:1"},
        {**place, "nnodes": "3"},  # other nodes than SkyPilot's
    ):
        assert asked(sky, **other)["rdzv_endpoint"][0].host != "10.0.0.1"


def test_nodes_that_share_no_home_directory_have_no_key_in_it(home: dict[str, str]) -> None:
    sky = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", **home}
    job, _ = made(sky)
    assert job.rendezvous is not None
    assert job.rendezvous.secret == ""
    assert not Path(home["HOME"], ".config").exists()
