"""The pages of "Get started" print what they say."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.blocks import shown, worker_lines
from support.launcher import Launcher
from support.ports import free_port

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]


def script(folder: Path, text: str) -> Path:
    """Save a page's script by the name in its first line."""
    named = re.match(r"# (\w+\.py): ", text)
    assert named
    path = folder / named[1]
    path.write_text(text)
    return path


def losses(output: str) -> dict[int, float]:
    """What is printed of each epoch by one process, or by rank 0."""
    found = re.findall(r"(?m)^(?:\[0\] )?epoch (\d): loss ([\d.]+)$", output)
    return {int(epoch): float(loss) for epoch, loss in found}


@pytest.fixture
def launcher(torshrun: Launcher) -> Launcher:
    """The same, where torch's cache is in the test's folder and not where temporary files are."""
    torshrun.share_torch()
    return torshrun


def check(page: str, output: str) -> None:
    """Check that losses are as on the page, but for another processor's rounding."""
    said = losses(page)
    assert len(said) == 5
    assert losses(output) == pytest.approx(said, abs=2e-3)


def test_one_process(tmp_path: Path) -> None:
    path = script(tmp_path, shown("docs/start/first-job.md", "# train.py"))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300)
    check(shown("docs/start/first-job.md", "$ python"), done.stdout)


def test_two_copies_of_one_process(launcher: Launcher) -> None:
    path = script(launcher.folder, shown("docs/start/first-job.md", "# train.py"))
    code, out, err = launcher.run("--nproc-per-node", "2", path.name, within=120)
    assert (code, err) == (0, "")
    check(shown("docs/start/first-job.md", "$ python"), out)
    page = shown("docs/start/first-job.md", "$ torshrun")
    assert {*worker_lines(page)} == {*worker_lines(out)}


def test_two_nodes(launcher: Launcher) -> None:
    script(launcher.folder, shown("docs/start/ddp.md", "# train_ddp.py"))
    command = shown("docs/start/two-nodes.md", "torshrun --nnodes 2")
    words = shlex.split(command.replace("29400", f"{free_port()}"))[1:]
    nodes = [launcher.start(*words) for _ in range(2)]
    told = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    (both,) = (out + err for out, err in told if "node 0 of 2" in err)
    page = shown("docs/start/two-nodes.md", "torshrun: waiting")
    check(page, both)
    said = [line for line in page.splitlines() if line.startswith("torshrun:")]
    assert [line for line in said if line not in both.splitlines()] == []


@pytest.mark.parametrize(
    ("text", "page"),
    [
        (shown("docs/start/ddp.md", "# train_ddp.py"), shown("docs/start/ddp.md", "$ torshrun")),
        (shown("docs/start/fsdp.md", "# train_fsdp.py"), shown("docs/start/fsdp.md", "$ torshrun")),
    ],
    ids=["ddp", "fsdp"],
)
def test_two_processes(launcher: Launcher, text: str, page: str) -> None:
    path = script(launcher.folder, text)
    code, out, err = launcher.run("--nproc-per-node", "2", path.name, within=120)
    assert (code, err) == (0, "")
    check(page, out)


def test_a_failure_is_survived(launcher: Launcher) -> None:
    path = script(launcher.folder, shown("docs/start/failure.md", "# train_resume.py"))
    options = ("--nproc-per-node", "2", "--max-restarts", "3")
    code, out, err = launcher.run(*options, path.name, within=120)
    assert code == 0, err
    page = shown("docs/start/failure.md", "$ torshrun")
    check(page, out)
    report = [line for line in page.splitlines() if "[0]" not in line][1:]
    for line in report:
        pattern = re.sub(r"host vm, pid \d+, after [\d.]+ s", "host .*, pid .*, after .* s", line)
        assert re.search(f"(?m)^{pattern.replace('(', '[(]').replace(')', '[)]')}$", err), line
