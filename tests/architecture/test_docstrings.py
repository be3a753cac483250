"""Checks the checker of docstrings, by faults planted in a module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import docstrings

FAULTY = '''"""Who waits for whom in a round."""

LIMIT = 3
"""Of it."""


class Round:
    """A round."""

    size: int = 0
    """The number of its ranks."""


def leader() -> str:
    """The rank that leads."""


def ranks() -> int:
    """Whether all came."""


def wait() -> None:
    """Wait."""


def test_of_nothing() -> None:
    """What a test shows."""
'''

CLEAN = '''"""Counts the ranks of a round."""

LIMIT = 3
"""Ranks at most."""


class Round:
    """Holds the ranks of a round."""


def wait() -> None:
    """Wait until all ranks have reached `round`."""
'''


def test_each_rule_finds_its_fault(tmp_path: Path) -> None:
    file = tmp_path / "faulty.py"
    file.write_text(FAULTY)
    assert sorted(docstrings.faults_in(file)) == [
        f"{file}:15: The rank that leads.: 'The' is no verb in the imperative that VERBS lists",
        f"{file}:19: Whether all came.: begins with 'Whether'",
        f"{file}:1: Who waits for whom in a round.: begins with 'Who'",
        f"{file}:4: Of it.: begins with 'Of'",
        f"{file}:8: A round.: has fewer than 4 words",
    ]


def test_the_command_exits_with_1_for_faults_and_0_without(tmp_path: Path) -> None:
    for name, text, code in (("faulty.py", FAULTY, 1), ("clean.py", CLEAN, 0)):
        file = tmp_path / name
        file.write_text(text)
        ended = subprocess.run(
            [sys.executable, docstrings.__file__, file], capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode, bool(ended.stdout)) == (code, bool(code)), ended.stderr


def test_finished_folders_are_clean() -> None:
    assert docstrings.main([]) == 0
