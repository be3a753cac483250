"""Real jobs that keep what their workers recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

PATIENCE = 90


class RecordedJob:
    """Runs scripts as ranks of one node, with a --log-dir in a directory of the test's own."""

    def __init__(self, folder: Path, prelude: str) -> None:
        """`prelude`: what each script begins with."""
        self.folder, self._prelude = folder, prelude
        self.mark = os.urandom(8).hex()
        """In the environment of all its processes, as MARK."""
        self.environ = {**os.environ, "MARK": self.mark}

    def run(self, ranks: int, script: str, *options: str) -> str:
        """Its stderr."""
        path = self.folder / "train.py"
        path.write_text(self._prelude + textwrap.dedent(script))
        command = [sys.executable, "-m", "torshrun", "--nproc-per-node", str(ranks)]
        argv = [*command, "--log-dir", "logs", *options, str(path)]
        return self._run(argv, self.environ).stderr

    def flight(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run([sys.executable, "-m", "torshrun.ctl", "flight", *arguments], None)

    def told(self) -> dict[str, Any]:
        """What is kept, as a program reads it."""
        done = self.flight("logs", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _run(
        self, argv: list[str], environ: dict[str, str] | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environ,
            timeout=PATIENCE,
            check=False,
        )
