"""Checks the check of attributes that nobody reads, by a misspelt one."""

from __future__ import annotations

from pathlib import Path

from tests.support import attributes


def test_a_misspelt_assignment_is_named(tmp_path: Path) -> None:
    package = tmp_path / "torshrun"
    package.mkdir()
    (package / "round.py").write_text(
        "class Round:\n"
        "    def __init__(self):\n"
        "        self.start, self.given = 0, 1\n"
        "        self.strat = 2\n"
        "        self.named = 3\n"
        "        other.kept = 4\n"
        "    def end(self):\n"
        "        return self.start + getattr(self, 'named')\n"
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_round.py").write_text("assert Round().given == 1\n")
    assert attributes.never_read(tmp_path) == [
        "torshrun/round.py:4: self.strat is assigned and never read"
    ]


def test_there_is_none() -> None:
    assert attributes.never_read(attributes.ROOT) == []
