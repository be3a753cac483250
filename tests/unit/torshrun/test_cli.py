"""The command line: its help, what it refuses, and how little it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torshrun import cli, config

HELP = """\
Usage: torshrun [OPTIONS] SCRIPT [ARGUMENTS]...

  Start SCRIPT once per worker, give each its rank through the environment, and watch over them: if
  one fails the others are stopped and, if restarts are left, all start again.

  Every option that takes a value can also be set by an environment variable, TORSH_NPROC_PER_NODE
  or PET_NPROC_PER_NODE for example; the command line wins. Options after SCRIPT are SCRIPT's.

Size:
  --nproc-per-node N  Workers to start on this node. [default: 1]
  --nnodes N          Nodes of the job; this version runs on one. [default: 1]
  --standalone        One node: what this version always does.

Run:
  --max-restarts N            How often all workers are started again after one fails. [default: 0]
  --rdzv-id, --run-id NAME    Name of the job. [default: none]
  --role NAME                 Role of the workers. [default: default]
  --shutdown-timeout SECONDS  Time between asking workers to stop and killing them. [default: 30]
  -m, --module                The script is a module's name, as with python -m.
  --no-python                 The script is a program: run it without Python.

Where rank 0 listens:
  --master-addr HOST  Address for MASTER_ADDR. [default: 127.0.0.1]
  --master-port PORT  Port for MASTER_PORT. [default: a free one for each start]

Output:
  --log-dir DIRECTORY  Keep each worker's output in DIRECTORY/<job>_*/attempt_<n>/<local rank>/.

Other:
  --version   Print the version and exit.
  -h, --help  Show this message and exit.
"""


def run(*argv: str) -> Result:
    return CliRunner().invoke(cli.command, argv, prog_name="torshrun", terminal_width=100)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[config.LaunchConfig]:
    """What would have been launched; nothing is."""
    import torshrun.launch

    jobs: list[config.LaunchConfig] = []

    def launch(job: config.LaunchConfig) -> int:
        jobs.append(job)
        return 42

    monkeypatch.setattr(torshrun.launch, "launch", launch)
    return jobs


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_help() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert result.output == HELP


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.startswith("torshrun 0.")


def test_the_exit_code_is_the_jobs(launched: list[config.LaunchConfig], script: str) -> None:
    assert run(script).exit_code == 42


@pytest.mark.parametrize("spelling", ["--nproc-per-node", "--nproc_per_node"])
@pytest.mark.parametrize("joined", [True, False])
def test_both_spellings(
    launched: list[config.LaunchConfig], script: str, spelling: str, joined: bool
) -> None:
    option = [f"{spelling}=3"] if joined else [spelling, "3"]
    run(*option, script)
    assert launched[0].nproc_per_node == 3


@pytest.mark.parametrize("spelling", ["--rdzv-id", "--rdzv_id", "--run-id", "--run_id"])
def test_the_jobs_name(launched: list[config.LaunchConfig], script: str, spelling: str) -> None:
    run(spelling, "my_job", script)
    assert launched[0].run_id == "my_job"


def test_options_behind_the_script_are_the_scripts(
    launched: list[config.LaunchConfig], script: str
) -> None:
    run("--role", "r", script, "--role", "x", "--help", "--unknown_option", "--", "-m", "")
    assert launched[0].role == "r"
    assert launched[0].arguments == (
        "--role",
        "x",
        "--help",
        "--unknown_option",
        "--",
        "-m",
        "",
    )


def test_kinds(launched: list[config.LaunchConfig]) -> None:
    run("-m", "pkg.train", "-m")
    run("--no-python", "true")
    assert [job.kind for job in launched] == ["module", "program"]
    assert launched[0].arguments == ("-m",)


def test_variables(
    launched: list[config.LaunchConfig], script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "5")
    run(script)
    assert launched[0].nproc_per_node == 5


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "Missing argument 'SCRIPT'"),
        (["--nproc-per-nod", "2", "SCRIPT"], "Did you mean '--nproc-per-node'?"),
        (["--nproc-per-node"], "requires an argument"),
        (["--nproc-per-node", "four", "SCRIPT"], "'four' is not a whole number"),
        (["--nproc-per-node", "0", "SCRIPT"], "at least 1 worker"),
        (["--nnodes", "2", "SCRIPT"], "one node only"),
        (["--max-restarts", "-1", "SCRIPT"], "is negative"),
        (["--master-port", "99999", "SCRIPT"], "not a TCP port"),
        (["no-such-file.py"], "no-such-file.py does not exist"),
        (["-m", "--no-python", "SCRIPT"], "exclude each other"),
        (["--no-python", "no-such-program"], "not in PATH"),
    ],
)
def test_bad_usage_says_what_is_wrong_and_exits_with_2(
    launched: list[config.LaunchConfig], script: str, argv: list[str], said: str
) -> None:
    result = run(*[script if word == "SCRIPT" else word for word in argv])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
    assert not launched


def test_a_configuration_error_is_one_line(script: str) -> None:
    result = run("--nnodes", "3", script)
    assert result.stderr.startswith("torshrun: error: --nnodes: ")
    assert result.stderr.count("\n") == 1


def test_help_loads_little() -> None:
    code = (
        "import sys, json, torshrun.cli\n"
        "try: torshrun.cli.command.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    heavy = {"numpy", "asyncio", "psutil", "yaml", "ctypes", "msgpack", "ssl", "socket"}
    assert not loaded & heavy
    assert "torshrun.launch" not in loaded
