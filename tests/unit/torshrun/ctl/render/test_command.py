"""torshctl render, as it is typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.rendered import EXAMPLE

from torshrun.ctl.command import run
from torshrun.ctl.render.targets import TARGETS
from torshrun.exit_codes import USAGE


@pytest.mark.parametrize("target", TARGETS)
def test_to_stdout_and_to_a_file(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["render", target, "-f", str(EXAMPLE)]) == 0
    shown = capsys.readouterr().out
    assert run(["render", target, "-f", str(EXAMPLE), "-o", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    assert capsys.readouterr().out == f"{path}\n"
    assert path.name.startswith("digits")
    assert len(path.read_text()) == len(shown)
    assert not path.stat().st_mode & 0o077 or target != "kubernetes"
    assert run(["render", target, "-f", str(EXAMPLE), "-o", str(tmp_path)]) == USAGE
    assert "exists already" in capsys.readouterr().err
    assert run(["render", target, "-f", str(EXAMPLE), "-o", str(tmp_path), "--force"]) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["slrum", "-f", str(EXAMPLE)], "did you mean slurm?"),
        (["slurm"], "Missing option '-f'"),
        (["slurm", "-f", "none.yaml"], "cannot read the configuration file none.yaml"),
    ],
)
def test_what_was_typed_wrongly(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["render", *words]) == USAGE
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("aws", "cluster: aws: needs region, instance_type, image, subnet"),
        ("gcp", "cluster: gcp: needs project, zone, machine_type"),
        ("azure", "cluster: azure: needs location, size"),
        ("kubernetes", "cluster: needs image"),
        ("compose", "cluster: needs image"),
    ],
)
def test_what_is_missing(
    target: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text("script: train.py\n")
    assert run(["render", target, "-f", str(tmp_path / "job.yaml")]) == USAGE
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "cluster", "told"),
    [
        ("slurm", "{notice: 30h}", "sbatch takes no --signal of more than 65535 s"),
        ("slurm", "{time_limit: 1m}", "notice: 120 s before the end of 60 s"),
        ("pbs", "{time_limit: 1m}", "notice: 120 s before the end of 60 s"),
        ("lsf", "{time_limit: 2m}", "notice: 120 s before the end of 120 s"),
    ],
)
def test_a_notice_that_no_scheduler_can_give(
    target: str, cluster: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(f"script: train.py\ncluster: {cluster}\n")
    assert run(["render", target, "-f", str(tmp_path / "job.yaml")]) == USAGE
    assert told in capsys.readouterr().err


def test_a_full_disk_is_told_in_a_line() -> None:
    command = [sys.executable, "-m", "torshrun.ctl", "render", "slurm", "-f", str(EXAMPLE)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    why = "No space left on device"
    assert done.stderr == f"torshctl: error: the output cannot be written: {why}\n"


def test_a_startup_script_that_no_cloud_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = EXAMPLE.read_text().replace(
        "export PATH=/opt", f"# {'x' * 15000}\n      export PATH=/opt"
    )
    (tmp_path / "job.yaml").write_text(setup)
    assert run(["render", "aws", "-f", str(tmp_path / "job.yaml")]) == USAGE
    assert "the startup script would have more than 15000 bytes" in capsys.readouterr().err
