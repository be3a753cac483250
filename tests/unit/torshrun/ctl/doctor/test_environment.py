"""Which variables the doctor finds suspicious, and what it never shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.config.options import OPTIONS, Option
from torshrun.config.request import gather
from torshrun.ctl.doctor import environment
from torshrun.ctl.doctor.environment import shown_value
from torshrun.ctl.doctor.finding import Finding

SOURCES = Path(environment.__file__).parents[3]


def look(variables: dict[str, str], hosts: tuple[str, ...] = ()) -> dict[str, Finding]:
    found = environment.check(environment.gather(variables, 8, hosts))
    return {each.what: each for each in found}


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("RANK", "3", "warning"),
        ("WORLD_SIZE", "x", "problem"),
        ("MASTER_ADDR", "10.0.0.1", "note"),
        ("MASTER_PORT", "70000", "problem"),
        ("OMP_NUM_THREADS", "4", "ok"),
        ("OMP_NUM_THREADS", "4,2", "ok"),
        ("OMP_NUM_THREADS", "64", "warning"),
        ("OMP_NUM_THREADS", "all", "warning"),
        ("NCCL_DEBUG", "INFO", "note"),
        ("NCCL_DEBUG", "WARN", "ok"),
        ("NCCL_IB_DISABLE", "1", "note"),
        ("CUDA_LAUNCH_BLOCKING", "1", "note"),
        ("CUDA_VISIBLE_DEVICES", "", "note"),
        ("CUDA_VISIBLE_DEVICES", "0,1", "ok"),
        ("LD_PRELOAD", "/no/such/library.so", "problem"),
        ("LD_PRELOAD", "libc.so.6", "note"),
        ("PYTHONHOME", "/opt", "warning"),
        ("PYTHONUNBUFFERED", "1", "ok"),
        ("TORSH_NPROC_PER_NOD", "4", "note"),
        ("TORSH_NPROC_PER_NODE", "4", "ok"),
        ("TORSH_SOCKET_STREAMS", "4", "ok"),
        ("PET_NNODES", "2", "ok"),
        ("PET_NNODE", "2", "note"),
        ("PET_NNODES", "", "ok"),
        ("TORSH_NNODES", "abc", "problem"),
        ("PET_NNODES", "3:2", "problem"),
        ("PET_STANDALONE", "maybe", "problem"),
        ("TORSH_RDZV_CONF", "ttl=5", "ok"),
        ("TORSH_RDZV_CONF", "ttl=never", "problem"),
        ("TORSH_RDZV_ID", "mine", "ok"),
        ("TORSH_LOG_DIR", "/dev/null", "problem"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon", "problem"),
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "9400", "ok"),
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "94000", "problem"),
        ("GLOO_DEVICE_TRANSPORT", "TCP", "ok"),
    ],
)
def test_variables(name: str, value: str, severity: str) -> None:
    assert look({name: value})[name].severity == severity


def test_others_are_not_shown() -> None:
    assert set(look({"PATH": "/bin", "EDITOR": "vi"})) == {"scheduler", "variables"}


def test_a_workers_own_place_is_right() -> None:
    found = look({"RANK": "0", "MASTER_ADDR": "a", "TORCHELASTIC_RUN_ID": "job"})
    assert {each.severity for each in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("variables", "severity"),
    [
        ({}, "note"),
        ({"no_proxy": "localhost,.cluster"}, "ok"),
        ({"no_proxy": "*"}, "ok"),
        ({"no_proxy": "other"}, "note"),
    ],
)
def test_a_proxy_that_catches_etcd(variables: dict[str, str], severity: str) -> None:
    found = look({"http_proxy": "http://proxy:3128", **variables}, ("etcd0.cluster",))
    assert found["http_proxy"].severity == severity


def test_a_proxy_and_addresses() -> None:
    found = look({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8"}, ("10.1.2.3",))
    assert found["HTTPS_PROXY"].severity == "ok"


def test_a_variable_says_which_option_it_stands_for_and_what_is_wrong_with_it() -> None:
    found = look({"TORSH_NNODES": "abc", "PET_RDZV_ID": "mine", "PET_MAX_RESTARTS": ""})
    assert found["PET_RDZV_ID"].value == "mine, for --rdzv-id"
    assert found["PET_MAX_RESTARTS"].value == "(empty, the same as not set), for --max-restarts"
    assert found["TORSH_NNODES"].value == "abc, for --nnodes"
    assert found["TORSH_NNODES"].advice == (
        "torshrun ends with an error, unless it is given the option itself: 'abc' is neither a "
        "number of nodes nor MIN:MAX. Correct or unset TORSH_NNODES."
    )


def test_the_first_of_several_variables_of_an_option_counts() -> None:
    found = look({"TORSH_NNODES": "2", "PET_NNODES": "abc", "TORSH_ROLE": "", "PET_ROLE": "r"})
    assert found["TORSH_NNODES"].severity == "ok"
    assert found["PET_NNODES"].severity == "note"
    assert "TORSH_NNODES is set, too, and takes precedence" in found["PET_NNODES"].advice
    assert found["PET_ROLE"].severity == "ok"


@pytest.mark.parametrize(
    "option", [each for each in OPTIONS if each.in_file], ids=lambda option: option.key
)
def test_what_the_doctor_takes_torshrun_takes(option: Option) -> None:
    for variable in option.environment:
        for text in ("1", "x y", "auto", "127.0.0.1:1", "10.0.0.1/8", "\0"):
            takes = True
            try:
                gather({}, None, (), {variable: text})[option.key]
            except ConfigError:
                takes = False
            found = look({variable: text})[variable]
            assert found.severity == ("ok" if takes else "problem")


@pytest.mark.parametrize(
    "name",
    [
        *("TORSH_SECRET", "TORSH_ETCD_PASSWORD", "TORSH_WORKER_SECRET", "NCCL_API_KEY"),
        *("PET_SECRET_FILE", "TORSH_EXPORT", "PET_EXPORT", "PET_SSH_COMMAND", "TORSH_SSH_COMMAND"),
    ],
)
@pytest.mark.parametrize("value", ["hunter2hunter2", "hunter2\0"])
def test_secrets_are_never_shown(name: str, value: str) -> None:
    found = look({name: value})
    assert "hunter2" not in str(found)
    assert "not shown" in found[name].value


@pytest.mark.parametrize("url", ["http://me:hunter2@etcd:2379", "me:hunter2@etcd:2379"])
def test_passwords_are_not_shown_in_what_is_wrong_either(url: str) -> None:
    found = look({"TORSH_RDZV_ENDPOINT": url})["TORSH_RDZV_ENDPOINT"]
    assert found.severity == "problem"
    assert "hunter2" not in str(found)
    assert "it is not HOST:PORT,..." in found.advice


def test_passwords_in_urls_are_not_shown() -> None:
    assert shown_value("http_proxy", "http://me:hunter2@proxy:1/") == "http://…@proxy:1/"


def test_long_values_are_cut() -> None:
    assert shown_value("PYTHONPATH", "x" * 5000).endswith("(5000 characters)")


def test_schedulers_are_told_by_their_variables() -> None:
    found = look({"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", "OMPI_COMM_WORLD_SIZE": "4"})
    assert found["scheduler: Slurm"].value == "SLURM_JOB_ID=17, SLURM_JOB_NUM_NODES=2"
    assert "scheduler: Open MPI" in found


def test_no_variable_that_torshrun_reads_is_unknown() -> None:
    files = [*SOURCES.glob("torshrun/**/*.py"), *SOURCES.glob("torsh_runtime/**/*.py")]
    own = SOURCES / "torshrun" / "ctl" / "doctor"
    text = "".join(file.read_text() for file in files if not file.is_relative_to(own))
    read = set(re.findall(r"\"(TORSH_[A-Z_]+)\"", text))
    assert len(read) > 10
    facts = environment.gather(dict.fromkeys(read, "1"), 8, ())
    unknown = [f.what for f in environment.check(facts) if "No option" in f.advice]
    assert unknown == []
