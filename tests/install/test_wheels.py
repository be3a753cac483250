"""The wheels of dist/ on systems with python3 and pip alone: installed there, and trained with.

What is fetched is fetched before, so the trees need no network. `scripts/wheels` makes the wheels,
and the tests of those that are not there are skipped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.opened_tree import OpenedTree, opened_tree
from support.release import CHECKOUT, version

BAR = 60.0
"""Seconds for installing and training, beside the download."""
TRAIN = "torshrun --nproc-per-node 2 train_gpt.py --steps 10"
RELEASES = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def only_in_full_length(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("opens a system: only with --soak")


def wheel_of(tag: str, processor: str) -> Path:
    pattern = f"torshrun-{version()}-{tag}-*_{processor}.whl"
    for found in (CHECKOUT / "dist").glob(pattern):
        return found
    pytest.skip(f"there is no dist/{pattern}: scripts/wheels")


def fetch(wheel: Path, python: str, processor: str, folder: Path) -> None:
    """Into `folder`, with what it depends on, as pip would choose it for that Python there."""
    glibcs = [f"--platform=manylinux_2_{minor}_{processor}" for minor in (28, 27, 17, 12)]
    platforms = [*glibcs, f"--platform=manylinux2014_{processor}"]
    chosen = ["--only-binary=:all:", f"--python-version={python}", *platforms, "--dest", folder]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *chosen, wheel]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def ready(place: Path, tag: str, python: str, processor: str) -> OpenedTree:
    """A tree with the example and what was fetched."""
    wheel = wheel_of(tag, processor)
    tree = opened_tree(place, RELEASES[python], processor)
    home = tree.root / "root"
    home.mkdir(exist_ok=True)
    fetch(wheel, python, processor, home / "wheels")
    for name in ("train_gpt.py", "gpt.py"):
        (home / name).write_text((CHECKOUT / "examples" / name).read_text())
    return tree


def typed(tree: OpenedTree, line: str) -> tuple[str, float]:
    """What it printed, and how long it took; it must have ended well."""
    done = tree.type(line)
    print(f"$ {line}\n{done.output[-4000:]}-- {done.code}, {done.seconds:.1f} s")
    assert done.code == 0
    return done.output, done.seconds


@pytest.mark.parametrize(
    ("tag", "python"),
    [
        ("cp311-cp311", "3.11"),
        ("cp313-cp313", "3.13"),
        ("cp312-abi3", "3.13"),
        ("cp314-cp314", "3.14"),
        ("cp312-abi3", "3.14"),
    ],
)
def test_it_installs_and_trains_within_a_minute(tmp_path: Path, tag: str, python: str) -> None:
    tree = ready(tmp_path / "tree", tag, python, "x86_64")
    assert tree.type("command -v cc gcc g++ clang").code != 0
    install = "pip install --quiet --no-index --find-links wheels torshrun"
    output, seconds = typed(
        tree, f"python3 -m venv env && . env/bin/activate && {install} && {TRAIN}"
    )
    assert "step    10  loss" in output
    print(f"{tag} on Python {python}: installed and trained in {seconds:.1f} s")
    assert seconds <= BAR
    shown, _ = typed(tree, ". env/bin/activate && torshrun --version && ls env/share/man/man1")
    assert shown.split() == ["torshrun", version(), "torshctl.1", "torshrun.1"]


@pytest.mark.parametrize(("tag", "python"), [("cp311-cp311", "3.11"), ("cp312-abi3", "3.13")])
def test_it_trains_on_arm64(tmp_path: Path, tag: str, python: str) -> None:
    """By qemu, where installing takes too long: pip does that from outside."""
    tree = ready(tmp_path / "tree", tag, python, "aarch64")
    home = tree.root / "root"
    packages = [str(each) for each in (home / "wheels").glob("*.whl")]
    for package in packages:
        subprocess.run([sys.executable, "-m", "zipfile", "-e", package, home], check=True)
    (home / "torshrun/keeper/torsh-keeper").chmod(0o755)
    output, _ = typed(tree, f"python3 -m {TRAIN} --layers 1 --embed 32 --context 32")
    assert "step    10  loss" in output


def test_the_source_distribution_builds_a_wheel(tmp_path: Path) -> None:
    """In a fresh environment, with this machine's compiler."""
    source = CHECKOUT / "dist" / f"torshrun-{version()}.tar.gz"
    if not source.exists():
        pytest.skip("there is none: scripts/wheels")
    python = tmp_path / "env/bin/python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path]
    done = subprocess.run([*command, source], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert f"torshrun-{version()}-cp" in wheel.name
