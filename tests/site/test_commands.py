"""Commands on the documentation's pages, typed into a shell, do and print what the pages say."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest
from support.blocks import sessions, shown
from support.launcher import Launcher
from support.ports import free_port

EPOCHS = 'for epoch in (1, 2):\n    print(f"epoch {epoch}", flush=True)\n'
FAILS = "import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '1' else time.sleep(60)\n"
SQUARE = "import numpy\nprint(numpy.ones(3).sum())\n"


@pytest.fixture
def shell(torshrun: Launcher) -> Launcher:
    """Give a launcher whose shell finds the commands, and this Python by the name python."""
    torshrun.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")
    return torshrun


def save(shell: Launcher, name: str, text: str) -> None:
    (shell.folder / name).write_text(text)


def typed(shell: Launcher, lines: str, code: int = 0, **options: object) -> tuple[str, str]:
    """Return what bash prints on stdout and stderr; its exit code must be this one."""
    process = shell.start("-c", lines, command=["bash"], **options)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    return out, err


def masked(lines: list[str]) -> list[str]:
    """Return the lines in order, with the name of the page's host and # for numbers and names."""
    own = re.escape(socket.gethostname())
    named = (re.sub(rf"\[{own}/", "[vm/", line) for line in lines)
    return sorted(re.sub(r"[0-9a-f]{16}|\d+", "#", line) for line in named)


def test_scripts_of_the_readers(shell: Launcher) -> None:
    commands = {
        shown("README.md", "torshrun --nproc-per-node 2 your_existing_script.py"),
        shown("docs/index.md", "torshrun --nproc-per-node 2 your_existing_script.py"),
        shown("docs/standbys.md", "torshrun --nproc-per-node 8"),
    }
    for command in commands:  # the first two are the same
        save(shell, command.split()[-1], SQUARE)
        out, _ = typed(shell, command)
        assert out.count("] 3.0\n") == int(command.split()[2])


def test_the_sum_of_the_readme(shell: Launcher) -> None:
    save(shell, "sum.py", shown("README.md", "# sum.py"))
    page = shown("README.md", "$ torshrun --nproc-per-node 2 sum.py")
    ((command, printed),) = sessions(page)
    out, _ = typed(shell, command)
    assert sorted(out.splitlines()) == printed


@pytest.mark.parametrize(
    "page",
    [
        shown("docs/output.md", "$ torshrun --nproc-per-node 2 --log-timestamps"),
        shown("docs/output.md", "$ torshrun --nproc-per-node 2 --run-id"),
    ],
    ids=["timestamps", "files"],
)
def test_output(shell: Launcher, page: str) -> None:
    save(shell, "train.py", EPOCHS)
    for command, printed in sessions(page):
        out, _ = typed(shell, command)
        assert masked(out.splitlines()) == masked(printed)


@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs the CPUs 0 and 1")
def test_placement(shell: Launcher) -> None:
    save(shell, "place.py", shown("docs/placement.md", "# place.py"))
    pages = (
        shown("docs/placement.md", "$ torshrun place.py"),
        shown("docs/placement.md", "$ torshrun --nproc-per-node 2 --numa"),
        shown("docs/placement.md", "$ torshrun --nproc-per-node 3 --numa"),
        shown("docs/placement.md", "$ CUDA_VISIBLE_DEVICES=5,3 torshrun --nproc-per-node 2"),
        shown("docs/placement.md", "$ CUDA_VISIBLE_DEVICES=5,3 torshrun --nproc-per-node 3"),
    )
    for command, printed in sessions("".join(pages)):
        is_refused = printed[0].startswith("torshrun: error:")
        on_two = {"within": ("taskset", "--cpu-list", "0,1")}
        out, err = typed(shell, command, 2 if is_refused else 0, **on_two)
        assert sorted((err if is_refused else out).splitlines()) == printed


@pytest.mark.skipif(not shutil.which("jq"), reason="needs jq")
def test_the_cause_among_the_events(shell: Launcher) -> None:
    save(shell, "train.py", FAILS)
    out, _ = typed(shell, shown("docs/events.md", "torshrun --events"))
    assert "rank 1" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "script", "page"),
    [
        (
            "steps.py",
            shown("docs/collectives.md", "# steps.py"),
            shown("docs/collectives.md", "$ for rank"),
        ),
        pytest.param(
            "ddp.py",
            shown("docs/torch.md", "# ddp.py"),
            shown("docs/torch.md", "$ for rank in 0 1 2; do python ddp.py"),
            marks=pytest.mark.torch,
        ),
        pytest.param(
            "recover.py",
            shown("docs/torch.md", "# recover.py"),
            shown("docs/torch.md", "$ for rank in 0 1 2; do python recover.py"),
            marks=pytest.mark.torch,
        ),
    ],
    ids=["NumPy", "torch", "torch's functions"],
)
def test_ranks_go_on_without_one_that_died(
    shell: Launcher, name: str, script: str, page: str
) -> None:
    if name != "steps.py":
        pytest.importorskip("torch")
        from torch.distributed import distributed_c10d

        if name == "recover.py" and not hasattr(distributed_c10d, "_reconfigure"):
            pytest.skip("torch before 2.14 has no such functions")
    save(shell, name, script.replace("29500", f"{free_port()}"))
    ((command, (_, *printed)),) = sessions(page)
    out, _ = typed(shell, command)
    assert [line for line in printed if line not in out.splitlines()] == []


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_certificates_for_etcd(shell: Launcher) -> None:
    typed(shell, f"set -e\n{shown('docs/etcd.md', 'openssl req')}")
    for name in ("etcd0", "etcd1", "etcd2", "client"):
        typed(shell, f"openssl verify -CAfile ca.pem {name}.pem")


def test_a_schedule_is_drawn(shell: Launcher) -> None:
    pytest.importorskip("matplotlib")
    typed(shell, shown("docs/pipeline-parallel.md", "python -m torsh_runtime.parallel.pipeline"))
    assert (shell.folder / "zb-h1.png").read_bytes().startswith(b"\x89PNG")


def test_the_doctor(shell: Launcher) -> None:
    """It may find problems of this machine."""
    process = shell.start("-c", shown("docs/start/install.md", "torshctl doctor"), command=["bash"])
    out, err = process.communicate(timeout=120)
    assert process.returncode in (0, 1), err
    assert "\nkernel\n" in out


@pytest.mark.parametrize(
    ("command", "job"),
    [
        ("torshrun --dry-run", shown("docs/configuration.md", "# job.yaml")),
        ("torshctl render slurm", shown("docs/render.md", "script: train.py")),
        ("torshctl render kubernetes", shown("docs/render.md", "cluster:\n  kubernetes")),
        ("torshctl render jobset", shown("docs/render.md", "cluster:\n  nodes: 2:4")),
    ],
    ids=["dry run", "Slurm", "Kubernetes", "JobSet"],
)
def test_job_files_are_read(shell: Launcher, command: str, job: str) -> None:
    save(shell, "train.py", SQUARE)
    whole = (
        job if "script:" in job else f"script: train.py\n{job}  image: registry.example/torshrun\n"
    )
    save(shell, "job.yaml", whole)
    out, _ = typed(shell, f"{command} {'--config' if 'dry' in command else '-f'} job.yaml")
    assert "train.py" in out
