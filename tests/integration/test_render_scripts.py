"""Job scripts as a shell runs them, with stand-ins for what schedulers and clouds provide."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.programs import program
from support.rendered import EXAMPLE, SHELLS, Stubs, rendered, texts

CONFIGS = EXAMPLE.parent
NODES = "node0\nnode1\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


def run(target: str, stubs: Stubs, text: str) -> int:
    """Run the script as its scheduler would, or what a cloud's machine would run; its code."""
    (stubs.folder / "nodes").write_text(NODES)
    variables = {
        "slurm": {"SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_ID": "7"},
        "pbs": {
            "PBS_JOBID": "7.server",
            "PBS_O_WORKDIR": str(stubs.folder),
            "PBS_NODEFILE": str(stubs.folder / "nodes"),
        },
        "lsf": {"LSB_DJOB_HOSTFILE": str(stubs.folder / "nodes")},
    }
    if target in variables:
        return stubs.run(text, **variables[target])
    return stubs.run(machine(stubs, text))


def machine(stubs: Stubs, text: str) -> str:
    """What a cloud's script gives to its first machine, with its files in the folder."""
    (stubs.folder / "secret").write_text("5ec2e7")
    start = f'secret_file={stubs.folder}/secret\nstartup ""\n'
    functions = re.split(r"^case ", text, maxsplit=1, flags=re.MULTILINE)[0]
    done = subprocess.run(["bash", "-c", functions + start], capture_output=True, check=True)
    for name in ("shutdown", "useradd"):
        stubs.write(name, ":")
    stubs.write("systemd-run", f'set -a; . {stubs.folder}/torshrun.env; exec "${{!#}}"')
    script = done.stdout.decode()
    script = script.replace("/etc/torshrun.env", f"{stubs.folder}/torshrun.env")
    return script.replace("/usr/local/bin/torshrun-job", f"{stubs.folder}/torshrun-job")


@pytest.mark.parametrize("target", SHELLS)
def test_shellcheck_has_nothing_to_say(target: str, folder: Path) -> None:
    script = folder / "script"
    for changes in ({}, everything(target)):
        script.write_text(rendered(target, folder, **changes))
        done = subprocess.run(
            [program("shellcheck"), "--shell=bash", script], capture_output=True, text=True
        )
        assert (done.stdout, done.returncode) == ("", 0), script.read_text()


def everything(target: str) -> dict[str, Any]:
    """Each key with a value that makes its lines appear."""
    place: dict[str, Any] = {
        "slurm": {"account": "a", "qos": "q", "directives": ["--exclusive"]},
        "pbs": {"queue": "q", "account": "a", "directives": ["-m n"]},
        "lsf": {"queue": "q", "project": "p", "directives": ["-x"]},
        "aws": {"key_name": "k", "profile": "p", "spot": True},
        "gcp": {"spot": True},
        "azure": {"spot": True, "ssh_key": "key.pub"},
    }[target]
    common = {"gpus": 4, "modules": ["cuda/12"], "requeue": False, "nodes": "1:3", "notice": "5m"}
    example = rendered_place(target)
    cluster = {**example, **common, target: {**example.get(target, {}), **place}}
    return {"cluster": cluster, "shutdown_timeout": "1m", "run_id": "x", "log_timestamps": True}


def rendered_place(target: str) -> dict[str, Any]:
    import yaml

    cluster: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["cluster"]
    return cluster


@pytest.mark.parametrize("target", SHELLS)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=15,
    phases=[Phase.explicit, Phase.generate],
)
@given(data=st.data())
def test_torshrun_gets_what_the_file_says_whatever_that_is(
    target: str, folder: Path, data: st.DataObject
) -> None:
    script = "train.py" + data.draw(texts)
    arguments = data.draw(st.lists(texts, min_size=1, max_size=4))
    value, others = data.draw(texts), data.draw(texts)
    setup = f"export OTHER={shlex.quote(others)}"
    stubs = Stubs(folder)
    text = rendered(
        target,
        folder,
        script=script,
        arguments=arguments,
        environment={"VALUE": value},
        role="r" + data.draw(texts),
        cluster={
            "setup": setup,
            target: {**rendered_place(target).get(target, {}), "setup": setup},
        },
    )
    assert run(target, stubs, text) == 0
    words = stubs.words()
    assert words[words.index(script) :] == [script, *arguments]
    found = stubs.variables()
    assert found["VALUE"] == value
    assert target in ("aws", "gcp", "azure") or found["OTHER"] == others
    assert not (folder / "broken").exists()


def test_slurm_starts_one_torshrun_per_node(folder: Path) -> None:
    stubs = Stubs(folder)
    text = rendered("slurm", folder)
    assert run("slurm", stubs, text) == 0
    assert stubs.words("srun")[:2] == ["--kill-on-bad-exit=0", "torshrun"]
    options = ["--nproc-per-node=2", "--requeue-on-preempt", "--max-restarts=3"]
    assert stubs.words()[:4] == [*options, "examples/train.py"]
    assert stubs.variables()["SRUN_CPUS_PER_TASK"] == "2"


@pytest.mark.parametrize("requeue", [True, False])
def test_slurm_is_asked_to_requeue_what_had_to_make_room(tmp_path: Path, requeue: bool) -> None:
    stubs = Stubs(tmp_path)
    stubs.write("torshrun", 'printf "%s\\0" "$@" > "$SEEN.words"; exit 75')
    text = rendered("slurm", tmp_path, cluster={**rendered_place("slurm"), "requeue": requeue})
    assert run("slurm", stubs, text) == 75
    assert stubs.words("words").count("--requeue-on-preempt") == requeue


def test_pbs_tells_each_node_what_pbsdsh_does_not(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path)
    stubs.write(
        "torshrun", 'cp "$PBS_NODEFILE" "$SEEN.nodes"; env -0 > "$SEEN.env"; pwd > "$SEEN.pwd"'
    )
    scrubbed = 'cd /; exec env -i HOME="$HOME" SEEN="$SEEN"'
    stubs.write("pbsdsh", f'shift; {scrubbed} "$@"')
    assert run("pbs", stubs, rendered("pbs", tmp_path)) == 0
    assert (tmp_path / "seen.nodes").read_text() == NODES
    assert (tmp_path / "seen.pwd").read_text().strip() == str(tmp_path)
    assert stubs.variables()["PBS_JOBID"] == "7.server"
    assert stubs.variables()["OMP_NUM_THREADS"] == "1"
    assert "PBS_ARRAY_INDEX" not in stubs.variables()
    assert not [*tmp_path.glob(".7.server*")]


def test_tasks_of_an_array_of_pbs_know_their_number_on_each_node(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path)
    (tmp_path / "nodes").write_text(NODES)
    stubs.write("pbsdsh", 'shift; exec env -i HOME="$HOME" SEEN="$SEEN" "$@"')
    place = {"PBS_O_WORKDIR": str(tmp_path), "PBS_NODEFILE": str(tmp_path / "nodes")}
    task = {"PBS_JOBID": "7[3].server", "PBS_ARRAY_INDEX": "3"}
    assert stubs.run(rendered("pbs", tmp_path), **place, **task) == 0
    found = stubs.variables()
    assert {name: found[name] for name in task} == task


def test_lsf_lists_each_host_once_in_its_order(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path)
    (tmp_path / "hosts").write_text("b\nb\na\na\n")
    text = rendered("lsf", tmp_path)
    assert stubs.run(text, LSB_DJOB_HOSTFILE=str(tmp_path / "hosts")) == 0
    assert stubs.words("blaunch")[:3] == ["-z", "b a", "torshrun"]


def test_a_machine_of_a_cloud_starts_torshrun(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path)
    assert run("aws", stubs, rendered("aws", tmp_path)) == 0
    found = stubs.variables()
    assert found["TORSH_SECRET"] == "5ec2e7"
    assert re.fullmatch(r"\S+:29400", found["TORSH_RDZV_ENDPOINT"])
    assert (found["TORSH_NNODES"], found["TORSH_RDZV_BACKEND"]) == ("2", "tcp")
    assert (tmp_path / "torshrun.env").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not shutil.which("sbatch"), reason="needs Slurm's sbatch")
@pytest.mark.parametrize("wrong", ["", "--nods=2", "--time=1:0:0:0:0"])
def test_sbatch_understands_the_directives(tmp_path: Path, wrong: str) -> None:
    """As far as it does without a cluster: a wrong one it refuses before it looks for one."""
    text = rendered("slurm", tmp_path, **everything("slurm"))
    if wrong:
        text = text.replace("#SBATCH --exclusive", f"#SBATCH {wrong}")
    (tmp_path / "job.sbatch").write_text(text)
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=none\nSlurmctldHost=localhost\nGresTypes=gpu\n"
    )
    done = subprocess.run(
        ["timeout", "5", "sbatch", "--test-only", tmp_path / "job.sbatch"],
        env={**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")},
        capture_output=True,
        text=True,
    )
    refused = re.search("unrecognized option|Invalid|invalid", done.stderr)
    assert bool(refused) == bool(wrong), done.stderr
