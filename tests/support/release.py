"""The version that the project has, and where else it stands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def version() -> str:
    """As pyproject.toml has it."""
    text: str = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    return text


def newest_release() -> tuple[str, str]:
    """The version that the changelog tells of first, and its date."""
    found = re.search(
        r"(?m)^## (\S+) - (\d{4}-\d\d-\d\d)$", (CHECKOUT / "CHANGELOG.md").read_text()
    )
    assert found, "CHANGELOG.md has no heading like: ## 0.2.0 - 2026-11-27"
    return found[1], found[2]
