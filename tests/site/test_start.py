"""The pages of "Get started" print what they say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.launcher import Launcher

START = Path(__file__).parents[2] / "docs" / "start"
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]


def block(page: str, language: str) -> str:
    """The first block in this language."""
    found = re.search(rf"```{language}\n(.*?)```", (START / page).read_text(), re.DOTALL)
    assert found, f"{page} has no block of {language}"
    return found[1]


def script(folder: Path, page: str) -> Path:
    """The page's script, saved by the name in its first line."""
    text = block(page, "python")
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
    """Losses are as on the page, but for another processor's rounding."""
    said = losses(block(page, "text"))
    assert len(said) == 5
    assert losses(output) == pytest.approx(said, abs=2e-3)


def test_one_process(tmp_path: Path) -> None:
    command = [sys.executable, script(tmp_path, "first-job.md")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    check("first-job.md", done.stdout)


@pytest.mark.parametrize("page", ["ddp.md", "fsdp.md"])
def test_two_processes(launcher: Launcher, page: str) -> None:
    path = script(launcher.folder, page)
    code, out, err = launcher.run("--nproc-per-node", "2", path.name, within=120)
    assert (code, err) == (0, "")
    check(page, out)


def test_a_failure_is_survived(launcher: Launcher) -> None:
    path = script(launcher.folder, "failure.md")
    options = ("--nproc-per-node", "2", "--max-restarts", "3")
    code, out, err = launcher.run(*options, path.name, within=120)
    assert code == 0, err
    check("failure.md", out)
    report = [line for line in block("failure.md", "text").splitlines() if "[0]" not in line][1:]
    for line in report:
        pattern = re.sub(r"host vm, pid \d+, after [\d.]+ s", "host .*, pid .*, after .* s", line)
        assert re.search(f"(?m)^{pattern.replace('(', '[(]').replace(')', '[)]')}$", err), line
