"""The pages of "Get started" print what they say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.blocks import shown
from support.launcher import Launcher

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
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")
    return torshrun


def check(page: str, output: str) -> None:
    """Check that losses are as on the page, but for another processor's rounding."""
    said = losses(page)
    assert len(said) == 5
    assert losses(output) == pytest.approx(said, abs=2e-3)


def test_one_process(tmp_path: Path) -> None:
    path = script(tmp_path, shown("docs/start/first-job.md", "# train.py"))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    check(shown("docs/start/first-job.md", "$ python"), done.stdout)


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
