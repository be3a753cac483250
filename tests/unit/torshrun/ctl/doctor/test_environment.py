"""Which variables the doctor finds suspicious, and what it never shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torshrun.ctl.doctor import environment
from torshrun.ctl.doctor.environment import Environment, shown_value
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


@pytest.mark.parametrize(
    "name", ["TORSH_SECRET", "TORSH_ETCD_PASSWORD", "TORSH_WORKER_SECRET", "NCCL_API_KEY"]
)
def test_secrets_are_never_shown(name: str) -> None:
    found = look({name: "hunter2hunter2"})
    assert "hunter2" not in str(found)
    assert "not shown" in found[name].value


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
    facts = Environment(dict.fromkeys(read, "1"), 8, (), {})
    unknown = [f.what for f in environment.check(facts) if "No option" in f.advice]
    assert unknown == []
