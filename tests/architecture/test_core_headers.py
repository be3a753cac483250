"""Which of the standard library's headers the C++ core does without."""

from __future__ import annotations

import re
from pathlib import Path

CORE = Path(__file__).parents[2] / "torsh_runtime" / "csrc"
_LOCALES = re.compile(r"#include <(iostream|fstream|sstream|iomanip|istream|ostream|locale|regex)>")


def test_no_file_uses_locales() -> None:
    """Built with a libstdc++ of its own, the core reads the facets of another one's locale."""
    files = [*CORE.rglob("*.[ch]pp")]
    assert len(files) > 50
    assert [str(file) for file in files if _LOCALES.search(file.read_text())] == []
