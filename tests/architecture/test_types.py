"""What type checkers of users see: the packages' own types, and names that are wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torsh_runtime as tr
import torshrun.config.job
from torsh_runtime import DistributedDataParallel, all_reduce

text: str = tr.__version__
rank: str = tr.get_rank()
tr.get_rankk()
"""
CONFIG = """
[mypy]
strict = true
[mypy-torch.*,jax.*,numpy.*]
follow_imports = skip
"""


def test_mypy_sees_them(tmp_path: Path) -> None:
    """Outside of the checkout, so that it finds what is installed."""
    script, config = tmp_path / "train.py", tmp_path / "mypy.ini"
    script.write_text(SCRIPT)
    config.write_text(CONFIG)
    command = ("-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "/dev/null", "train.py")
    run = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert [line.partition("  [")[0] for line in run.stdout.splitlines()[:-1]] == [
        'train.py:7: error: Incompatible types in assignment (expression has type "int", variable '
        'has type "str")',
        'train.py:8: error: Module has no attribute "get_rankk"',
    ], run.stdout + run.stderr
