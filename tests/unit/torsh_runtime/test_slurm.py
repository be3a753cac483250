"""Slurm's notation and variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from torsh_runtime import slurm
from torsh_runtime.errors import ConfigError

STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "10",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),2",
    "SLURM_NODEID": "2",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n[1-2,7],login", "n1 n2 n7 login"),
        ("x[08-11]", "x08 x09 x10 x11"),
        ("x[01-02,7]-y[1-2]", "x01-y1 x01-y2 x02-y1 x02-y2 x7-y1 x7-y2"),
        ("n[1-2].cluster,m[3]", "n1.cluster n2.cluster m3"),
    ],
)
def test_lists_of_nodes(text: str, names: str) -> None:
    assert slurm.hosts(text) == names.split()


@pytest.mark.parametrize(
    "name", ["SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"]
)
def test_an_empty_variable_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}"):
        slurm.step({**STEP, name: ""})


@pytest.mark.parametrize(
    "text",
    ["n[", "n[1-", "n[a]", "n[2-1]", "n[]", "a b", "a,,b", "n[1-9999999]", "n[0-999][0-999]"],
)
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(ConfigError):
        slurm.hosts(text)


def test_tasks_per_node() -> None:
    assert slurm.counts("4(x2),2") == (4, 4, 2)
    assert slurm.counts("1") == (1,)
    for wrong in ("", "a", "4(x", "4(x2),", "1(x999999)", "-1"):
        with pytest.raises(ConfigError):
            slurm.counts(wrong)


def test_a_step_of_unequal_nodes() -> None:
    step = slurm.step(STEP)
    assert step is not None
    assert (step.tasks, step.world_size, step.name) == ((4, 4, 2), 10, "slurm-17.0")
    assert (step.node_rank, step.rank, step.local_rank) == (2, 9, 1)


def test_a_batch_script_is_no_step() -> None:
    batch = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    assert slurm.step(batch) is None
    assert slurm.step({}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_NODEID", "3"),
        ("SLURM_NODEID", ""),
        ("SLURM_PROCID", "10"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "x"),
        ("SLURM_LOCALID", "-1"),
    ],
)
def test_variables_that_cannot_be(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=r"SLURM|tasks per node"):
        slurm.step({**STEP, name: value})


def test_the_first_host_is_the_address_that_slurm_uses() -> None:
    told = {("show", "hostnames", "n[1-2]"): "n1\nn2\n"}
    node = {("--oneliner", "show", "node", "n1"): "NodeName=n1 NodeAddr=10.0.0.1 NodeHostName=x"}

    def asking(answers: Mapping[tuple[str, ...], str]) -> slurm.Scontrol:
        return lambda *words: slurm.Reply(answers.get(words, ""))

    assert slurm.first_host("n[1-2]", asking({**told, **node})) == "10.0.0.1"
    assert slurm.first_host("n[1-2]", asking(told)) == "n1"
    assert slurm.first_host("n[4-5]", asking({})) == "n4"  # in a container without Slurm


def test_why_scontrol_has_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "cannot be started" in slurm.scontrol("show").error
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho a line; echo 'Access denied\n for job 7' >&2\nexit $1\n")
    program.chmod(0o700)
    assert slurm.scontrol("0") == ("a line\n", "")
    assert slurm.scontrol("1") == ("", "Access denied for job 7")


def test_jobs_meet_at_ports_of_their_own() -> None:
    ports = {slurm.port(f"slurm-{job}.0") for job in range(200)}
    assert len(ports) > 190
    assert all(15000 <= port < 31000 for port in ports)
