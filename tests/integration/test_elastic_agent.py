"""ElasticAgent: a function in workers, from within a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import elastic_agents
from support.launcher import Launcher
from support.ports import free_port
from support.processes import soon

import torsh_runtime as tr
from torsh_runtime.elastic import ElasticAgent

SCRIPT = str(Path(elastic_agents.__file__))


def run(*argv: str, **variables: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, SCRIPT, *argv],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout, done.stderr


def test_workers_go_on_and_the_result_of_rank_0_comes_back(tmp_path: Path) -> None:
    out, err = run("train", str(tmp_path / "kept"))
    assert "result {'began': 4, 'total': array([6., 6.]), 'ranks': 2, 5: (b'x', None)}" in out, err
    out, err = run("train", str(tmp_path / "kept"))
    assert "'began': 6, 'total': array([6., 6.])" in out, err


def test_under_torshrun_the_function_is_only_called(torshrun: Launcher, tmp_path: Path) -> None:
    launch = ("--nproc-per-node=2", "--max-restarts=1", "--restart-backoff=0")
    code, out, err = torshrun.run(*launch, SCRIPT, "train", str(tmp_path))
    assert code == 0, err
    assert out.count("result {'began': 4, 'total': array([6., 6.])") == 2


def test_a_process_of_mpiexecs_is_a_rank() -> None:
    names = ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")
    place = {f"OMPI_COMM_WORLD_{name}": str(int("SIZE" in name)) for name in names}
    assert run("ranks", **place) == ("result 1\n", "")


def test_workers_are_here_whatever_torshrun_would_be_told(tmp_path: Path) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-2]"}
    out, err = run("ranks", TORSH_HOSTFILE=str(tmp_path / "none"), **job)
    assert out.endswith("result 2\n"), err
    assert "slurm" not in err


def test_the_first_error_is_raised() -> None:
    out, err = run("fail")
    assert "raised WorkerFailed ValueError: the weights are heavy" in out, err


def test_a_result_that_cannot_be_passed_is_told_without_another_run() -> None:
    out, err = run("thing")
    assert "the function has run, but its result is lost: rank 0 cannot save: result is a" in out
    assert "restarting" not in err


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_program(tmp_path: Path, signo: signal.Signals) -> None:
    tells = tmp_path / "pid"
    program = subprocess.Popen(
        [sys.executable, SCRIPT, "sleep"],
        env={**os.environ, "TELLS": str(tells)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    soon(lambda: tells.exists() and bool(tells.read_text()), 60)
    worker = Path("/proc", tells.read_text())
    assert worker.exists()
    program.send_signal(signo)
    program.wait(60)
    soon(lambda: not worker.exists(), 30)
    assert not worker.exists()


def test_programs_meet_and_one_has_the_result() -> None:
    argv = [sys.executable, SCRIPT, "meet", f"127.0.0.1:{free_port()}"]
    programs = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [program.communicate(timeout=100) for program in programs]
    assert sorted(out for out, _ in said if "result" in out) == ["result 2\n", "result None\n"], (
        said
    )


def nothing() -> None:
    """To be run."""


def wants_two(first: Any, second: Any) -> None:
    """Not to be run."""


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"min_workers": 0}, "min_workers must be an integer of 1 or more, not 0"),
        ({"min_workers": True}, "min_workers must be"),
        ({"max_workers": "8"}, "max_workers must be an integer of 1 or more, not '8'"),
        ({"min_workers": 3, "max_workers": 2}, "max_workers=2 is less than min_workers=3"),
        ({"max_restarts": -1}, "max_restarts must be an integer of 0 or more"),
        ({"checkpoint_dir": 5}, "checkpoint_dir must be a path, not 5"),
        ({"options": "--nnodes=2"}, "options must be a list of strings"),
    ],
)
def test_nonsense_is_refused_before_anything_is_started(named: dict[str, Any], said: str) -> None:
    with pytest.raises(tr.ConfigError, match=said):
        ElasticAgent(**named)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(tr.ConfigError, match="max_workers=1 is less than min_workers=2"):
        ElasticAgent().min_workers(2).max_workers(1)
    with pytest.raises(tr.ConfigError, match="with rdzv_endpoint give max_workers and"):
        ElasticAgent(rdzv_endpoint="localhost:29400").run(nothing)
    agent = ElasticAgent(rdzv_endpoint="a:1", min_workers=5, max_workers=7, workers_per_node=4)
    with pytest.raises(tr.ConfigError, match="no number of nodes with 4 workers each has 5 to 7"):
        agent.run(nothing)
    with pytest.raises(tr.ConfigError, match="workers_per_node=2 on one node is less than"):
        ElasticAgent(min_workers=3, workers_per_node=2).run(nothing)


@pytest.mark.parametrize("function", [lambda: None, partial(nothing), [].append, 5])
def test_functions_without_a_name_are_refused(function: Any) -> None:
    with pytest.raises(tr.ConfigError, match=r"cannot be found by other processes|must take"):
        ElasticAgent().run(function)


def test_functions_of_other_arguments_are_refused() -> None:
    with pytest.raises(tr.ConfigError, match="must take nothing without a checkpoint_dir"):
        ElasticAgent().run(wants_two)
    with pytest.raises(tr.ConfigError, match="must take a checkpointer, and no more"):
        ElasticAgent(checkpoint_dir="kept").run(nothing)


def test_a_program_without_a_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torsh_runtime as tr\n"
        "def train(): pass\n"
        "tr.elastic.ElasticAgent(max_workers=1, max_restarts=0).run(train)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "run() is called while a worker loads the program" in done.stderr
