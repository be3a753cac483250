"""What a job file's `cluster` section may say, and how its mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.rendered import EXAMPLE, job_file

from torsh_runtime.errors import ConfigError
from torshrun.config.command_line import parse
from torshrun.config.request import gather
from torshrun.config.resolve import resolve
from torshrun.config.values import Nodes
from torshrun.ctl.render.job import read_job


def job_of(folder: Path, text: str) -> Any:
    path = folder / "job.yaml"
    path.write_text(text)
    return read_job(str(path))


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        job_of(folder, text)
    return str(raised.value)


def cluster(folder: Path, *lines: str) -> str:
    """The error about a file whose section has these lines, from the third one on."""
    body = "".join(f"  {line}\n" for line in lines)
    return refused(folder, f"script: train.py\ncluster:\n{body}").removeprefix(f"{folder}/")


def test_the_example_is_read() -> None:
    job = read_job(str(EXAMPLE))
    assert (job.name, job.nodes, job.workers) == ("digits", Nodes(2, 2), "2")
    assert (job.cpus, job.gpus, job.memory) == (2, 0, 4 << 30)
    assert (job.time_limit, job.notice, job.shutdown_timeout) == (3600, 120, 120)
    assert job.options == ("--max-restarts=3",)
    assert job.target == ("examples/train.py", "--epochs", "20")


def test_torshrun_takes_the_same_file_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE.parents[1])
    job, notes = resolve(gather({"config": str(EXAMPLE)}, None, (), {}), {})
    assert (job.max_nodes, job.nproc_per_node, notes) == (1, 2, ())


def test_what_follows_from_the_job_itself(tmp_path: Path) -> None:
    job = job_of(tmp_path, "script: a/Train Me.py\nnnodes: 2:4\ncluster: {gpus: 8}\n")
    assert (job.name, job.nodes, job.workers, job.cpus) == ("train-me", Nodes(2, 4), "8", 8)
    job = job_of(tmp_path, "script: 7.py\nnproc_per_node: auto\nshutdown_timeout: 1m\n")
    assert (job.name, job.workers, job.cpus, job.shutdown_timeout) == ("job-7", "auto", None, 60)
    assert job.own_shutdown_timeout
    job = job_of(tmp_path, "module: my.pkg\ncluster: {nodes: 3, name: null}\nnnodes: 2\n")
    assert (job.nodes, job.options, job.target) == (Nodes(3, 3), ("--module",), ("my.pkg",))


def test_a_scripts_own_dashes_reach_it(tmp_path: Path) -> None:
    job = job_of(tmp_path, "script: t.py\narguments: [--, -x]\n")
    assert job.target == ("--", "t.py", "--", "-x")
    assert parse(job.target)[1:] == ("t.py", ("--", "-x"))
    assert job_of(tmp_path, "script: t.py\narguments: [-x, --]\n").target == ("t.py", "-x", "--")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nods: 2", "job.yaml:3: cluster has no key nods; did you mean nodes?"),
        (
            "slurm: {partitoin: a}",
            "job.yaml:3: slurm has no key partitoin; did you mean partition?",
        ),
        ("nodes: two", "job.yaml:3: nodes: 'two' is neither a number of nodes nor MIN:MAX"),
        ("nodes: {a: 1}", "job.yaml:3: nodes takes N|MIN:MAX"),
        ("slurm: gpu", "job.yaml:3: slurm takes keys of its own"),
        ("memory: lots", "job.yaml:3: memory: 'lots' is not a size"),
        ("time_limit: 1 fortnight", "job.yaml:3: time_limit: '1 fortnight' is not a number of sec"),
        ("time_limit: 0", "job.yaml:3: time_limit: '0' is less than a second"),
        ("requeue: perhaps", "job.yaml:3: requeue: 'perhaps' is neither true nor false"),
        ("memory: 0", "job.yaml:3: memory: '0' is less than a byte: leave the key out"),
        ("cpus: 0", "job.yaml:3: cpus: 0 is not possible: leave the key out"),
        ("port: 80", "job.yaml:3: port: 80 is not possible: ports below 1024"),
        ("name: Not Small", "job.yaml:3: name: 'Not Small' is not a name"),
        ("name: [a, b]", "job.yaml:3: name: LABEL, no list"),
        ("kubernetes: {etcd_members: 2}", "job.yaml:3: etcd_members: '2' is not one of 0, 1, 3"),
        ('slurm: {partition: "a; rm"}', "job.yaml:3: partition: 'a; rm' is not one word"),
        ("slurm: {partition: -p}", "job.yaml:3: partition: '-p' is not one word"),
        (r'pbs: {directives: ["a\nb"]}', r"job.yaml:3: directives: 'a\nb' is not one line"),
        ("setup: {}", "job.yaml:2: setup takes SHELL"),
        ("modules: [[a]]", "job.yaml:3: modules: a text or a number is wanted"),
        ("slurm: {a: {b: 1}}", "job.yaml:3: a: a text or a number is wanted"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, line: str, told: str) -> None:
    error = cluster(tmp_path, line)
    assert error.startswith(told) or (line == "setup: {}" and error.startswith("setup takes SHELL"))


def test_a_key_that_stands_there_twice(tmp_path: Path) -> None:
    error = cluster(tmp_path, "time_limit: 1h", "time-limit: 2h")
    assert error == "job.yaml:4: time-limit stands in line 3 already"


def test_an_alias_that_leads_in_circles(tmp_path: Path) -> None:
    assert "a text or a number is wanted" in refused(
        tmp_path, "script: a.py\ncluster: &c\n  slurm: &s\n    a: *s\n"
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"node_rank": 1}, "node_rank: cannot be rendered: it differs on each node"),
        ({"standalone": True}, "standalone: cannot be rendered"),
        ({"hostfile": "hosts"}, "hostfile: cannot be rendered: the scheduler starts torshrun"),
        ({"scheduler": "pbs"}, "scheduler: cannot be rendered: torshrun detects it"),
        ({"time_limit": "1h"}, "time_limit: cannot be rendered: give cluster: time_limit"),
        ({"master_addr": "node0"}, "master_addr: cannot be rendered"),
        ({"max_restarts": "often"}, "max_restarts: 'often' is not a whole number"),
        ({"environment": {"A-B": "1"}}, "A-B: no shell can set a variable of this name"),
        ({"environment": {"UID": "1000"}}, "UID: bash sets UID itself: take another name"),
        ({"environment": {"TORSH_NNODES": "2"}}, "TORSH_NNODES would be read as an option"),
        ({"script": None, "arguments": None}, "the file does not say what to run"),
        ({"rdzv_backend": "etcd"}, "rdzv_backend: give rdzv_endpoint too"),
        ({"arguments": ["\udc80"]}, "cannot be written in UTF-8"),
    ],
)
def test_what_cannot_be_rendered(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_job(job_file(tmp_path, **changes))
