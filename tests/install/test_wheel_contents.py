"""What is in the wheels of dist/, which scripts/wheels makes, and in the one that is installed."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from support.release import CHECKOUT, version

PACKAGES = ("torshrun", "torsh_runtime")
WHEELS = sorted((CHECKOUT / "dist").glob(f"torshrun-{version()}-*.whl"))
SOURCES = (".c", ".h", ".cpp", ".hpp")
NATIVE = re.compile(r"torsh_runtime/backends/native/_native\.\S+\.so")
SHIM = "torshrun_shim.pth"
"""Which Python reads when it starts: in a folder of packages, and in none of ours."""
MANUALS = {"share/man/man1/torshrun.1", "share/man/man1/torshctl.1"}
MADE_BY = re.compile(r"torshrun-[\d.]+\.(dist-info|libs|data/data/share)/|__pycache__/|\.\./")


def in_the_checkout() -> set[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PACKAGES]
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(f"this is no git checkout: {found.stderr}")
    names = filter(None, found.stdout.split("\0"))
    return {name for name in names if (CHECKOUT / name).exists()}


def in_the_source_distribution() -> set[str]:
    """Of the packages."""
    with tarfile.open(CHECKOUT / "dist" / f"torshrun-{version()}.tar.gz") as opened:
        names = [each.name.partition("/")[2] for each in opened if each.isfile()]
    return {name for name in names if name.startswith(tuple(f"{each}/" for each in PACKAGES))}


def check(names: set[str], sources: set[str]) -> None:
    """Of a wheel's files: neither more nor less than there ought to be."""
    native = {name for name in names if NATIVE.fullmatch(name)}
    assert len(native) == 1
    wanted = (
        {name for name in sources if not name.endswith(SOURCES)}
        | native
        | {"torshrun/keeper/torsh-keeper", SHIM}
    )
    assert {name for name in names if not MADE_BY.search(name)} == wanted
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    for manual in MANUALS:
        assert any(name.endswith(manual) for name in names)


def test_the_one_that_is_installed() -> None:
    here = distribution("torshrun")
    if json.loads(here.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        pytest.skip("these are the sources themselves (pip install -e)")
    scripts = {"../../../bin/torshrun", "../../../bin/torshctl"}
    names = {str(file) for file in here.files or ()}
    assert scripts <= names
    check({name for name in names if not name.endswith(".pyc")}, in_the_checkout())


@pytest.mark.skipif(not WHEELS, reason="there are none: scripts/wheels")
@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name.split("-", 2)[2])
def test_those_that_are_given_away(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if not name.endswith("/")}
        check(names, in_the_source_distribution())
        keeper = opened.getinfo("torshrun/keeper/torsh-keeper")
        about = opened.read(f"torshrun-{version()}.dist-info/WHEEL").decode()
    licences = {name.rpartition("licenses/")[2] for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "THIRD_PARTY_LICENSES"}
    assert keeper.external_attr >> 16 & 0o111 == 0o111
    python, abi, platform = wheel.stem.split("-")[2:]
    assert abi in {python, "abi3"}
    assert (abi == "abi3") is (python == "cp312")
    assert re.fullmatch(r"manylinux_2_28_(x86_64|aarch64)", platform)
    tags = re.findall(r"(?m)^Tag: (\S+)$", about)
    assert tags == [f"{python}-{abi}-{platform}"]
