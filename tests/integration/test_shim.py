"""torshrun in torchrun's place: it starts what it can, and the rest is torch's and said so."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.blocks import shown
from support.launcher import Launcher
from support.processes import soon

PYTHON = (sys.executable,)
MODULE = ("-m", "torch.distributed.run")
needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
HELLO = "print('hello', rank, os.environ['WORLD_SIZE'], sys.argv[1:], 'torch' in sys.modules)"
ELASTIC = """
import os, sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def work(word):
    if word == "raise" and os.environ["RANK"] == "1":
        raise ValueError("bad batch")
    return int(os.environ["RANK"]), word

config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="job",
                      max_restarts=0, start_method="fork")
"""


@pytest.fixture
def shimmed(torshrun: Launcher) -> Launcher:
    torshrun.environ["TORSHRUN_AS_TORCHRUN"] = "1"
    return torshrun


def run(launcher: Launcher, *words: str, text: str = "") -> tuple[int, str, str]:
    """Python with these arguments, or with a program: its exit code, stdout and stderr."""
    if text:
        (launcher.folder / "program.py").write_text(textwrap.dedent(text))
        words = ("program.py", *words)
    process = launcher.start(*words, command=PYTHON)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def torchrun(launcher: Launcher) -> str:
    """The script as torch's wheel installs it, for a Python that may have no torch."""
    script = launcher.folder / "torchrun"
    script.write_text("import sys\nfrom torch.distributed.run import main\nsys.exit(main())\n")
    return str(script)


def test_the_commands_are_torshrun_before_torch_is_loaded(shimmed: Launcher) -> None:
    script = shimmed.script(HELLO)
    for start in ((torchrun(shimmed),), MODULE, ("-Bm", MODULE[1])):
        code, out, err = run(shimmed, *start, "--nproc_per_node", "2", script, "-x")
        assert (code, err) == (0, "")
        lines = [f"[{rank}] hello {rank} 2 ['-x'] False" for rank in (0, 1)]
        assert sorted(out.splitlines()) == lines
    code, out, _ = run(shimmed, *MODULE, "--help")
    assert (code, out[:15]) == (0, "Usage: torshrun")


def test_a_job_that_fails_is_reported_and_ends(shimmed: Launcher) -> None:
    """Threads of the launcher import what the report needs, while torch is being imported."""
    script = shimmed.script("assert rank != 1, 'bad batch'")
    for start in ((torchrun(shimmed),), MODULE):
        code, _, err = run(shimmed, *start, "--nproc_per_node", "2", script)
        assert code == 1
        assert "torshrun: rank 1 failed first: exit code 1" in err
        assert "AssertionError: bad batch" in err


def test_variables_of_kubeflows_are_torchruns(shimmed: Launcher) -> None:
    shimmed.environ |= {"PET_NPROC_PER_NODE": "2", "PET_NNODES": "1", "PET_NODE_RANK": "0"}
    code, out, _ = run(shimmed, torchrun(shimmed), shimmed.script(HELLO))
    assert (code, out.count("hello")) == (0, 2)


def test_torchx_gives_an_empty_role(shimmed: Launcher) -> None:
    script = shimmed.script("print(os.environ['ROLE_NAME'])")
    code, out, _ = run(shimmed, torchrun(shimmed), "--role", "", script)
    assert (code, out) == (0, "[0] default\n")


def test_zero_turns_it_off(shimmed: Launcher) -> None:
    program = "import sys; print([type(each).__module__ for each in sys.meta_path])"
    for word, is_on in (("0", False), ("false", False), ("1", True)):
        shimmed.environ["TORSHRUN_AS_TORCHRUN"] = word
        code, out, _ = run(shimmed, "-c", program)
        assert (code, "torshrun.shim" in out) == (0, is_on)


@pytest.mark.torch
@needs_torch
def test_what_torshrun_cannot_run_is_torchs_and_said(shimmed: Launcher) -> None:
    logs = f"--log-dir={shimmed.folder / 'logs'}"  # torch leaves its own behind
    code, _, err = run(shimmed, *MODULE, "--rdzv-backend=mine", logs, shimmed.script("pass"))
    [line] = [each for each in err.splitlines() if each.startswith("torshrun: ")]
    assert line.startswith("torshrun: torch's own launcher starts this, not torshrun: its ")
    assert code == 1
    assert "ValueError: The rendezvous backend 'mine' is not registered" in err


@pytest.mark.torch
@needs_torch
def test_functions_and_commands_of_elastic_launch(shimmed: Launcher) -> None:
    script = shimmed.script(HELLO)
    ends = f"""
    print(elastic_launch(config, work)("a"))
    print(elastic_launch(config, sys.executable)("-u", {script!r}, "b"))
    elastic_launch(config, sys.executable)("-u", "-c", "print('of Python')")
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    try:
        elastic_launch(config, "no-such-program")()
    except Exception as error:
        print(type(error).__name__, error)
    try:
        elastic_launch(config, work)("raise")
    except ChildFailedError as error:
        [(rank, failure)] = error.failures.items()
        print("failed", rank, failure.exitcode, failure.message["message"], error.__notes__)
    """
    code, out, err = run(shimmed, text=ELASTIC + textwrap.dedent(ends))
    assert code == 0, err
    assert "{0: (0, 'a'), 1: (1, 'a')}\n" in out
    assert "[1] hello 1 2 ['b'] False\n" in out
    assert "{0: None, 1: None}\n" in out
    assert {"[0] of Python", "[1] of Python"} <= {*out.splitlines()}
    assert "ConfigError torshrun has started no worker: its output says why\n" in out
    assert "torshrun: error: program no-such-program is not in PATH\n" in err
    [failed] = [each for each in out.splitlines() if each.startswith("failed")]
    assert failed.startswith("failed 1 1 ValueError: bad batch [")
    assert "rank 1 failed first: exit code 1" in failed
    assert 'program.py", line 7, in work' in err


@pytest.mark.torch
@needs_torch
def test_a_command_that_is_not_seen_at_the_start_ends_by_torshruns_code(
    shimmed: Launcher,
) -> None:
    """As accelerate launch and Lightning's fabric run call it."""
    script = shimmed.script("sys.exit(7 if rank else 0)")
    program = f"import torch.distributed.run as it; it.main(['--nproc-per-node=2', {script!r}])"
    code, _, err = run(shimmed, "-c", program)
    assert code == 7
    assert "torshrun: rank 1 failed first: exit code 7" in err
    assert "ChildFailedError" not in err


@pytest.mark.torch
@needs_torch
def test_a_signal_of_the_program_reaches_its_workers(shimmed: Launcher) -> None:
    work = """
    def work(word):
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
        print("ready", flush=True)
        time.sleep(60)
    elastic_launch(config, work)("a")
    """
    (shimmed.folder / "program.py").write_text(ELASTIC + textwrap.dedent(work))
    process = shimmed.start("program.py", command=PYTHON)
    assert process.stdout is not None
    assert [process.stdout.readline()[4:] for _ in range(2)] == ["ready\n"] * 2
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert out.count("saved") == 2
    assert "SignalException: Process" in err
    assert process.returncode == 1


@pytest.mark.torch
@needs_torch
@pytest.mark.slow
def test_accelerates_launchers_are_torshruns(shimmed: Launcher) -> None:
    pytest.importorskip("accelerate")
    shimmed.environ["HF_HUB_OFFLINE"] = "1"
    program = """
    from accelerate import notebook_launcher
    def train(word):
        import os
        print("trains", word, os.environ["RANK"], os.environ["TORSH_ROUND"], flush=True)
    notebook_launcher(train, ("a",), num_processes=2, use_port="29437")
    """
    code, out, err = run(shimmed, text=program)
    assert code == 0, err
    assert {"[0] trains a 0 0", "[1] trains a 1 0"} <= {*out.splitlines()}


@pytest.mark.torch
@pytest.mark.slow
def test_a_program_of_lightnings_becomes_torshrun_and_saves_at_a_notice(shimmed: Launcher) -> None:
    pytest.importorskip("lightning", reason="needs lightning")
    shimmed.environ["TORCHINDUCTOR_CACHE_DIR"] = str(shimmed.folder / "inductor")
    benchmark = Path(__file__).parents[2] / "benchmarks" / "front_ends_lightning.py"
    script = copied_to(benchmark, shimmed.folder)
    copied_to(benchmark.with_name("front_ends_scene.py"), shimmed.folder)
    process = shimmed.start(script, "preempted", ".", command=PYTHON)
    ready = [shimmed.folder / f"ready{rank}" for rank in (0, 1)]
    assert soon(lambda: all(path.exists() for path in ready), 180)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 75
    assert (shimmed.folder / "hpc_ckpt_1.ckpt").exists()


def test_a_program_that_begins_again_has_ended_as_programs_do(shimmed: Launcher) -> None:
    """A module in the shape of Lightning's, which takes long to load."""
    program = """
    import os, sys, tempfile, types
    from torshrun.shim.lightning import restart_program
    class Launcher:
        num_nodes, num_processes = 1, 2
        def _call_children_scripts(self): pass
    restart_program(types.SimpleNamespace(_SubprocessScriptLauncher=Launcher))
    kept = tempfile.TemporaryDirectory(prefix="of-the-program-")
    if "RANK" not in os.environ:
        Launcher()._call_children_scripts()
    print("rank", os.environ["RANK"], sys.argv[1:])
    """
    (shimmed.folder / "program.py").write_text(textwrap.dedent(program))
    code, out, err = run(shimmed, "program.py", "--epochs", "3")
    assert code == 0, err
    assert sorted(out.splitlines()) == [
        f"[{rank}] rank {rank} ['--epochs', '3']" for rank in (0, 1)
    ]
    assert not [*shimmed.temporary.glob("of-the-program-*")]


@pytest.mark.slow
def test_torchx_runs_torshrun(shimmed: Launcher) -> None:
    pytest.importorskip("torchx", reason="needs torchx")
    script = shimmed.script(HELLO)
    bin_of = str(Path(sys.executable).parent)
    shimmed.environ["PATH"] = f"{bin_of}:{shimmed.environ['PATH']}"
    words = ("run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script", script)
    process = shimmed.start(*words, command=(f"{bin_of}/torchx",))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert len(re.findall(r"hello [01] 2 \[\] False", out + err)) == 2


def copied_to(path: Path, folder: Path) -> str:
    copied = folder / path.name
    copied.write_text(path.read_text())
    return path.name


def test_installation_holds_for_the_environment_and_leaves_nothing(tmp_path: Path) -> None:
    """In a venv that finds the packages of this one, so that nothing of this one is changed."""
    venv = tmp_path / "venv"
    subprocess.run([*PYTHON, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    [packages] = venv.glob("lib/python*/site-packages")
    (packages / "here.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in sys.path if "site-" in path)
    )
    before = sorted(packages.iterdir())
    python, script = str(venv / "bin" / "python"), tmp_path / "train.py"
    script.write_text("import os; print('hello', os.environ['RANK'])")

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, *words], capture_output=True, text=True, timeout=60)

    assert call("-m", "torshrun.ctl", "shim", "install").returncode == 0
    ran = call(*MODULE, "--nproc-per-node", "2", str(script))
    assert sorted(ran.stdout.splitlines()) == ["[0] hello 0", "[1] hello 1"], ran.stderr
    again = call("-m", "torshrun.ctl", "shim", "install")
    assert (again.returncode, "installed already" in again.stderr) == (2, True)
    assert call("-m", "torshrun.ctl", "shim", "remove").returncode == 0
    lines = f'set -e; torshctl() {{ {python} -m torshrun.ctl "$@"; }}\n'
    command = ["bash", "-c", lines + shown("docs/shim.md", "export")]
    typed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert typed.returncode == 0, typed.stderr
    assert sorted(packages.iterdir()) == before
