"""scripts/setup on machines that lack this or that: what it says, and what it would run or runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup"
APT = "apt-get update && apt-get install --yes --no-install-recommends"
OLD_COMPILER = 'exec c++ "$@" -std=c++17'


class Machine:
    """Has only what is put on it. A package manager there notes what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self._tools, self.asked = folder / "bin", folder / "asked"
        self._tools.mkdir()
        for name in ("bash", "dirname", "id", "sed"):
            self.gets(name)

    def gets(self, *names: str) -> None:
        for name in names:
            found = shutil.which(name)
            assert found is not None, name
            (self._tools / name).symlink_to(found)

    def makes(self, name: str, program: str) -> Path:
        tool = self._tools / name
        tool.unlink(missing_ok=True)
        tool.write_text(f"#!/bin/sh\n{program}\n")
        tool.chmod(0o755)
        return tool

    def manages_packages_with(self, name: str) -> None:
        self.makes(name, f'echo "{name} $*" >> {self.asked}')

    def is_used_by(self, uid: int) -> None:
        self.makes("id", f"echo {uid}")

    def types(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": str(self._tools), **environ}
        return subprocess.run(
            [SETUP, *arguments], env=variables, capture_output=True, text=True, timeout=60
        )


SSHD = "" if Path("/run/systemd/system").is_dir() else " openssh-server"
"""Which systemd would start."""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_that_has_all_is_asked_for_nothing(machine: Machine) -> None:
    machine.gets("c++", "cc")
    machine.manages_packages_with("apt-get")
    done = machine.types("--dry-run", "examples", "expecttest", PYTHON=sys.executable)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(" .[examples] expecttest")
    assert "apt-get" not in done.stdout
    assert not machine.asked.exists()


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        (
            "apt-get",
            f"{APT} python3 python3-dev python3-venv g++ iproute2{SSHD} "
            f"slurm-wlm slurm-wlm-torque munge",
        ),
        (
            "dnf",
            "dnf install --assumeyes python3.11 python3.11-devel python3.11-libs gcc-c++ "
            f"iproute{SSHD}{SSHD and ' openssh-clients'}",
        ),
    ],
)
def test_root_would_run_one_command(machine: Machine, manager: str, command: str) -> None:
    machine.is_used_by(0)
    machine.manages_packages_with(manager)
    done = machine.types("--dry-run", "test")
    assert done.returncode == 0
    assert command in done.stdout.splitlines()
    assert "lacks Python 3.11 or later" in done.stderr
    assert not machine.asked.exists()


@pytest.mark.parametrize("manager", ["apt-get", "dnf"])
def test_another_user_gets_one_command_for_root(machine: Machine, manager: str) -> None:
    machine.is_used_by(1000)
    machine.manages_packages_with(manager)
    done = machine.types("test")
    assert done.returncode == 1
    lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("    ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"{manager} ")
    assert "iproute" not in lines[0]  # what only root can use
    assert not machine.asked.exists()


def test_what_is_still_missing_afterwards_is_an_error(machine: Machine) -> None:
    machine.is_used_by(0)
    machine.manages_packages_with("apt-get")
    done = machine.types(PYTHON=sys.executable)
    assert done.returncode == 1
    assert "still lacks a C++20 compiler" in done.stderr
    update, install = machine.asked.read_text().splitlines()
    assert (update, install.split()[-1]) == ("apt-get update", "g++")


def test_a_compiler_that_is_too_old_is_none(machine: Machine, tmp_path: Path) -> None:
    machine.gets("c++", "cc")
    machine.manages_packages_with("dnf")
    machine.is_used_by(1000)
    old = machine.makes("old", OLD_COMPILER)
    done = machine.types(PYTHON=sys.executable, CXX=str(old))
    assert done.returncode == 1
    assert "lacks a C++20 compiler (GCC 11, Clang 14 or later)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        ((), {"PYTHON": "/nowhere/python"}, "PYTHON=/nowhere/python is no Python 3.11 or later"),
        (("everything",), {}, "there is no 'everything': examples, dev or test"),
        ((), {}, "neither apt-get nor dnf"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    machine: Machine, arguments: Sequence[str], environ: dict[str, str], said: str
) -> None:
    done = machine.types(*arguments, **environ)
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def with_pip(machine: Machine, folder: Path, pip: str, **environ: str) -> tuple[int, list[str]]:
    """How setup ends, and what it says, where the virtual environment's pip does this."""
    machine.gets("c++", "cc", "mkdir", "cp", "sleep")
    venv = 'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/"; exit; fi'
    python = machine.makes("python", f'{venv}\n[ "$2" = pip ] || exit 0\n{pip}')
    script = folder / "scripts" / "setup"
    script.parent.mkdir()
    shutil.copy(SETUP, script)
    variables = {"PATH": str(python.parent), "PYTHON": str(python), **environ}
    done = subprocess.run([script], env=variables, capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    said = re.sub(r"\d+ s\b", "N s", done.stderr.replace("scripts/setup: ", ""))
    return done.returncode, said.splitlines()


BEFORE = [
    "making .venv with torshrun in it, in 2 to 4 minutes on 2 CPUs",
    "making the virtual environment: some seconds",
]
PIP = """
echo "Processing /src"
echo "  Installing build dependencies: started"
echo "  Installing build dependencies: finished with status 'done'"
echo "Collecting click>=8.1 (from torshrun==0.2.0)"
echo "Collecting numpy>=1.26 (from torshrun==0.2.0)"
echo "Building wheels for collected packages: torshrun"
echo "  Building wheel for torshrun (pyproject.toml): started"
echo "  Building wheel for torshrun (pyproject.toml): finished with status 'done'"
echo "Installing collected packages: click, numpy, torshrun"
echo "Successfully installed torshrun-0.2.0"
"""


def test_each_step_is_said_with_how_long_it_takes(machine: Machine, tmp_path: Path) -> None:
    assert with_pip(machine, tmp_path, PIP) == (
        0,
        [
            *BEFORE,
            "fetching the tools of the build: half a minute",
            "fetching packages: half a minute, with torch some minutes",
            "compiling C++: 1 to 2 minutes on 2 CPUs",
            "installing packages: half a minute, with torch a minute",
            "done after N s; now type: . .venv/bin/activate",
        ],
    )


def test_a_step_that_takes_long_gives_signs_of_life(machine: Machine, tmp_path: Path) -> None:
    pip = "echo '  Building editable for torshrun (pyproject.toml): started'; sleep 4"
    code, said = with_pip(machine, tmp_path, pip, SETUP_PULSE="1")
    assert code == 0
    assert said[2] == "compiling C++: 1 to 2 minutes on 2 CPUs"
    assert said.count("still compiling C++, for N s") >= 2


def test_what_pip_complains_of_is_shown_and_ends_it(machine: Machine, tmp_path: Path) -> None:
    pip = "echo 'Collecting click>=8.1'; echo 'ERROR: no such package' >&2; exit 3"
    code, said = with_pip(machine, tmp_path, pip)
    assert code == 3
    assert sorted(said[2:]) == [
        "ERROR: no such package",
        "fetching packages: half a minute, with torch some minutes",
    ]


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "docs", "torshrun", "torsh_runtime"]
)
def test_nobody_is_told_to_install_what_no_index_has(name: str) -> None:
    """torshrun is not on PyPI."""
    place = SETUP.parents[1] / name
    files = [place] if place.is_file() else [*place.rglob("*.py"), *place.rglob("*.md")]
    advice = re.compile(r"pip install (?:-\S+ )*'?torshrun")
    assert [str(file) for file in files if advice.search(file.read_text())] == []
