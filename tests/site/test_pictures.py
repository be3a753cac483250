"""Checks the documentation's pictures: that they are well formed, up to date and shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
SIZES = {"small": 13, "tiny": 12, "mono": 13, "plot": 21}
"""Sizes of text by class; the widest common fonts have letters of 0.6 of it on average."""
PICTURES = sorted(FOLDER.glob("*.svg"))


def embedded() -> dict[Path, list[str]]:
    """Return the pictures that pages show, each with its alternative texts."""
    found: dict[Path, list[str]] = {}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+\.svg)\)", page.read_text()):
            found.setdefault((page.parent / target).resolve(), []).append(alt)
    return found


def test_pictures_are_up_to_date() -> None:
    ended = subprocess.run(
        [sys.executable, "-B", FOLDER / "make.py", "--check"], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: str(path.stem))
def test_a_picture_says_what_it_shows_and_fits_any_page(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & set(root.attrib)
    for name in ("title", "desc"):
        assert (root.findtext(f"{SVG}{name}") or "").strip(), name


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: str(path.stem))
def test_text_stays_within_the_picture(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for each in root.iter(f"{SVG}text"):
        size = SIZES.get(each.attrib["class"].split(" ")[0], 15)
        half = 0.3 * size * len(each.text or "")
        to_the_left = {"start": 0.0, "middle": half, "end": 2 * half}[each.attrib["text-anchor"]]
        left = float(each.attrib["x"]) - to_the_left
        assert left >= 0, each.text
        assert left + 2 * half <= width, each.text
        assert float(each.attrib["y"]) <= height, each.text


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: str(path.stem))
def test_a_page_shows_the_picture_with_an_alternative_text(path: Path) -> None:
    texts = embedded().get(path.resolve(), [])
    assert texts, f"no page shows {path.name}"
    assert all(text.strip() for text in texts)


def test_pages_show_only_pictures_that_there_are() -> None:
    assert not [str(path) for path in embedded() if not path.is_file()]
