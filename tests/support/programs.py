"""Programs of the environment that runs the tests, which need not be in PATH."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def program(name: str) -> str:
    """Its path. The test is skipped if it is not there."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        pytest.skip(f"needs {name} (scripts/setup test)")
    return str(path)
