"""The command line: its help, what it refuses, and how little it loads."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from support.blocks import shown

from torsh_runtime.contract import WorkerEnv
from torshrun import cli
from torshrun.config.job import LaunchConfig


class Result(NamedTuple):
    """What a command line leads to."""

    exit_code: int
    stdout: str
    stderr: str


def worker(rank: int, local_rank: int) -> WorkerEnv:
    return WorkerEnv(rank=rank, world_size=16, local_rank=local_rank, local_world_size=16)


def run(*argv: str) -> Result:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = cli.run(argv)
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[LaunchConfig]:
    """What would have been launched; nothing is."""
    import torshrun.composition

    jobs: list[LaunchConfig] = []

    def launch(job: LaunchConfig) -> int:
        jobs.append(job)
        return 42

    monkeypatch.setattr(torshrun.composition, "launch", launch)
    return jobs


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    result = run("--help")
    assert result.exit_code == 0
    assert result.stdout == shown("docs/help.md", "Usage: torshrun"), "COLUMNS=100 torshrun --help"


@pytest.mark.parametrize("columns", [0, 40, 80, 500])
def test_help_fits(columns: int) -> None:
    assert max(map(len, cli.help_text(columns).splitlines())) <= max(min(columns, 100), 52)


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("torshrun 0.")


def test_the_exit_code_is_the_jobs(launched: list[LaunchConfig], script: str) -> None:
    assert run(script).exit_code == 42


@pytest.mark.parametrize("spelling", ["--nproc-per-node", "--nproc_per_node"])
@pytest.mark.parametrize("joined", [True, False])
def test_both_spellings(
    launched: list[LaunchConfig], script: str, spelling: str, joined: bool
) -> None:
    option = [f"{spelling}=3"] if joined else [spelling, "3"]
    run(*option, script)
    assert launched[0].nproc_per_node == 3


@pytest.mark.parametrize("spelling", ["--rdzv-id", "--rdzv_id", "--run-id", "--run_id"])
def test_the_jobs_name(launched: list[LaunchConfig], script: str, spelling: str) -> None:
    run(spelling, "my_job", script)
    assert launched[0].run_id == "my_job"


def test_options_behind_the_script_are_the_scripts(
    launched: list[LaunchConfig], script: str
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


def test_kinds(launched: list[LaunchConfig]) -> None:
    run("-m", "pkg.train", "-m")
    run("--no-python", "true")
    assert [job.kind for job in launched] == ["module", "program"]
    assert launched[0].arguments == ("-m",)


def test_variables(
    launched: list[LaunchConfig], script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "5")
    run(script)
    assert launched[0].nproc_per_node == 5


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "SCRIPT is missing: name it"),
        (["--nproc-per-noode", "2", "SCRIPT"], "did you mean --nproc-per-node?"),
        (["--nproc-per-node"], "needs a value: WORKERS"),
        (["--standalone=1", "SCRIPT"], "takes no value"),
        (["--master", "x", "SCRIPT"], "--master could be --master-addr, --master-port"),
        (["--config", "no-such-file.yaml", "SCRIPT"], "cannot read the configuration file"),
        (
            ["--print-config", "--nnodes", "2"],
            "--rdzv-endpoint (or --master-addr) has to say where",
        ),
        (["--print-config", "no-such-file.py"], "no-such-file.py does not exist"),
        (["--dry-run"], "SCRIPT is missing"),
        (["--nproc-per-node", "four", "SCRIPT"], "'four' is not a whole number"),
        (["--nproc-per-node", "0", "SCRIPT"], "1 to 65536 workers"),
        (["--nnodes", "2", "SCRIPT"], "--rdzv-endpoint (or --master-addr) has to say where"),
        (["--max-restarts", "-1", "SCRIPT"], "is negative"),
        (["--master-port", "99999", "SCRIPT"], "not a TCP port"),
        (["no-such-file.py"], "no-such-file.py does not exist"),
        (["-m", "--no-python", "SCRIPT"], "exclude each other"),
        (["--no-python", "no-such-program"], "not in PATH"),
    ],
)
def test_bad_usage_says_what_is_wrong_and_exits_with_2(
    launched: list[LaunchConfig], script: str, argv: list[str], said: str
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


def test_a_mistake_in_an_option_is_told_alike(script: str) -> None:
    result = run("--nproc-per-noode", "3", script)
    assert result.stderr.startswith("torshrun: error: there is no option")
    assert result.stderr.splitlines()[1:] == ["Try 'torshrun --help' for the options."]


def test_abbreviations(launched: list[LaunchConfig], script: str) -> None:
    assert run("--nnode", "1", "--nproc", "2", "--max_rest=3", script, "--nproc").exit_code == 42
    assert (launched[0].nproc_per_node, launched[0].max_restarts) == (2, 3)
    assert launched[0].arguments == ("--nproc",)


def test_a_command_line_of_torchruns(launched: list[LaunchConfig], script: str) -> None:
    result = run(
        "--nnodes=1",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
        "--nproc_per_node=4",
        "--node_rank=0",
        "-r3",
        "-t",
        "0:1,1:2",
        script,
    )
    assert (result.exit_code, result.stderr) == (42, "")
    assert launched[0].nproc_per_node == 4
    assert launched[0].output.redirects.everyone.name == "BOTH"
    assert launched[0].output.tee.streams(worker(1, 1)).name == "STDERR"


def test_notes_go_to_stderr(launched: list[LaunchConfig], script: str) -> None:
    result = run("--standalone", "--nnodes", "2", "--start-method", "fork", script)
    assert result.exit_code == 42
    assert result.stderr.splitlines() == [
        "torshrun: --nnodes has no effect: --standalone is given",
        "torshrun: --start-method has no effect: workers are programs, not functions",
    ]


def test_a_file_is_enough(launched: list[LaunchConfig], script: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"script: {script}\narguments: [a]\nnproc_per_node: 2\n")
    run("--config", str(file), "--max-restarts", "1")
    assert launched == [
        LaunchConfig(
            target=script,
            arguments=("a",),
            nproc_per_node=2,
            max_restarts=1,
            run_id=launched[0].run_id,
        )
    ]


def test_printing_the_configuration_needs_no_script(launched: list[LaunchConfig]) -> None:
    result = run("--print-config", "--nproc", "2", "--start-method", "fork")
    assert result.exit_code == 0
    assert "nproc_per_node: 2 " in result.stdout
    assert result.stderr == (
        "torshrun: --start-method has no effect: workers are programs, not functions\n"
    )
    assert not launched


def test_a_plan_can_be_printed_whatever_the_arguments_are(script: str) -> None:
    result = run("--dry-run", script, "\udcff")
    assert result.exit_code == 0
    result.stdout.encode()


def test_a_dry_run_starts_nothing(launched: list[LaunchConfig], script: str) -> None:
    result = run("--dry-run", "--standalone", "--nproc", "2", script, "x")
    assert result.exit_code == 0
    assert "2 workers would start" in result.stdout
    assert "TORCHELASTIC_RUN_ID=<chosen at start>" in result.stdout
    assert not launched


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "torshrun", "--nnodes", "2", "x.py"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("torshrun: error: --nnodes: ")


def test_help_loads_little() -> None:
    code = (
        "import sys, json, torshrun.cli\n"
        "torshrun.cli.run(['--help'])\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    heavy = {"numpy", "asyncio", "psutil", "yaml", "ctypes", "msgpack", "ssl", "socket", "click"}
    assert not loaded & heavy
    assert "torshrun.composition" not in loaded
