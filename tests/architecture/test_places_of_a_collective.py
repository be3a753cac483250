"""A new collective is written where docs/architecture.md says, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "torsh_runtime"
CALLERS = {"parallel", "compression", "integrations", "checkpoint"}
"""What makes something of collectives, or gives them another interface."""
PATTERNS = {
    ".py": r'def all_to_all\(|"all_to_all"',
    ".pyi": r"\ball_to_all\b",
    ".cpp": r"\ball_to_all\b|\bAllToAll\b",
    ".hpp": r"\ball_to_all\b|\bAllToAll\b",
}


def test_all_to_all_stands_in_the_places_of_the_list() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.partition("### Adding a collective\n")[2].partition("\n## ")[0]
    listed = {
        place
        for line in section.splitlines()
        if line.startswith("- ")
        for place in re.findall(r"`([^`]+)`", line)
    }
    assert 0 < len(listed) <= 8, "a collective should not need more places than it does now"
    assert {_place(path, listed) for path in _files_that_name_it()} == listed


def _files_that_name_it() -> list[str]:
    files = [file.relative_to(RUNTIME) for file in RUNTIME.rglob("*.*") if file.suffix in PATTERNS]
    return [
        file.as_posix()
        for file in files
        if file.parts[0] not in CALLERS
        and re.search(PATTERNS[file.suffix], (RUNTIME / file).read_text())
    ]


def _place(path: str, listed: set[str]) -> str:
    """The entry of the list that a file belongs to: itself, its directory, or a source and its
    header; the file itself if there is none."""
    stem = path.rpartition(".")[0]
    places = (path, stem, f"{path.rpartition('/')[0]}/")
    return next((place for place in places if place in listed), path)
