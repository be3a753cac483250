"""The documentation's site is built without a warning, and its reference leaves out no name."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.public_names import public_objects

ROOT = Path(__file__).parents[2]
needs_generator = pytest.mark.skipif(
    not importlib.util.find_spec("zensical"), reason="needs zensical, of docs/requirements.txt"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as one of two versions."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-P", ROOT / "scripts" / "site.py", "--into", folder]
    done = subprocess.run([*command, "--version", "1.0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site" / "1.0"


@needs_generator
def test_the_reference_has_each_public_name(built: Path) -> None:
    pages = "".join(page.read_text() for page in built.glob("reference/*/index.html"))
    anchors = set(re.findall(r'id="torsh_runtime\.([\w.]+)"', pages))
    assert public_objects().keys() <= anchors


@needs_generator
def test_code_in_tables_has_no_escapes(built: Path) -> None:
    assert "echo a:2,b:2 | tr , " in (built / "horovod" / "index.html").read_text()


@needs_generator
def test_versions_are_listed_beside_them(built: Path) -> None:
    assert '"version": "1.0"' in (built.parent / "versions.json").read_text()


@needs_generator
def test_no_reader_sees_why_a_block_is_not_run(built: Path) -> None:
    """The comments before blocks are not shown, and the search does not find them."""
    assert [page for page in built.rglob("*.html") if "<!-- not run: " in page.read_text()]
    for file in (*built.rglob("*.html"), built / "search.json"):
        assert "not run: " not in re.sub(r"<!--.*?-->", "", file.read_text(), flags=re.DOTALL), file


def test_the_navigation_has_each_page() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        children = entry.values() if isinstance(entry, dict) else entry
        return [page for child in children for page in pages(child)]  # type: ignore[attr-defined]

    navigation = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)["nav"]
    listed = [page for page in pages(navigation) if not page.startswith("reference/")]
    docs = ROOT / "docs"
    there = [str(page.relative_to(docs)) for page in docs.rglob("*.md")]
    assert sorted(listed) == sorted(page for page in there if not page.startswith("decisions/0"))


def test_a_requirement_of_the_site_is_one_of_the_tests() -> None:
    wanted = (ROOT / "docs" / "requirements.txt").read_text().splitlines()[1:]
    tests = (ROOT / "pyproject.toml").read_text()
    assert all(f'"{each}"' in tests for each in wanted)
