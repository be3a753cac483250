"""What says which version this is, and the pages that are made of the table of options."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from support.man_pages import FOLDER, pages
from support.release import CHECKOUT, newest_release, version


def test_all_say_the_same_version_and_date() -> None:
    citation = (CHECKOUT / "CITATION.cff").read_text()
    (cited,) = re.findall(r"(?m)^version: (.+)$", citation)
    (date,) = re.findall(r'(?m)^date-released: "(.+)"$', citation)
    assert {cited, newest_release()[0]} == {version()}
    assert newest_release()[1] == date


def test_pages_show_that_version() -> None:
    shown = re.findall(r"torshrun +(\d+\.\d+\.\d+)", (CHECKOUT / "docs/doctor.md").read_text())
    assert set(shown) == {version()}


def test_what_is_not_released_stands_above() -> None:
    headings = re.findall(r"(?m)^## (\S+)", (CHECKOUT / "CHANGELOG.md").read_text())
    assert headings[:2] == ["Unreleased", version()]


def test_licences_of_what_is_compiled_in_go_with_it() -> None:
    given = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["license-files"]
    texts = " ".join(" ".join((CHECKOUT / name).read_text() for name in given).split())
    try:
        compiled = distribution("nanobind")
    except PackageNotFoundError:
        pytest.skip("nanobind is in environments in which torshrun is built")
    (own,) = (file for file in compiled.files or () if file.name == "LICENSE")
    assert " ".join(own.read_text().split()) in texts
    header = compiled.locate_file("nanobind/ext/robin_map/include/tsl/robin_map.h")
    notice = Path(str(header)).read_text().partition("*/")[0].removeprefix("/*")
    assert " ".join(notice.replace("*", " ").split()) in texts


@pytest.mark.parametrize("file", pages())
def test_the_manual_is_up_to_date(file: str) -> None:
    assert (FOLDER / file).read_text() == pages()[file], "run: python tests/support/man_pages.py"


@pytest.mark.parametrize("file", pages())
@pytest.mark.parametrize("command", ["mandoc -T lint -W warning", "groff -man -ww -K utf8 -z"])
def test_formatters_of_manuals_find_nothing_wrong(command: str, file: str) -> None:
    if not shutil.which(command.split()[0]):
        pytest.skip(f"{command.split()[0]} is not installed")
    done = subprocess.run([*command.split(), FOLDER / file], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
