"""Runs the torshrun command on scripts, in a directory of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

from support.processes import marked, soon

CLEARED = ("PYTHONUNBUFFERED", "OMP_NUM_THREADS", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


class Launcher:
    """Ends by with: then nothing may be left of what it has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Short: the path of a Unix socket, as multiprocessing makes one in it, has 107 bytes.
        self.temporary = Path(tempfile.mkdtemp(prefix="test-"))
        self.mark = os.urandom(8).hex()
        kept = {name: value for name, value in os.environ.items() if name not in CLEARED}
        self.environ = {**kept, "TMPDIR": str(self.temporary), "MARK": self.mark}
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.wait(timeout=10)
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
        assert soon(lambda: not self.left_behind()), self.left_behind()
        assert soon(lambda: not any(self.temporary.iterdir())), os.listdir(self.temporary)
        self.temporary.rmdir()

    def share_torch(self) -> None:
        """Have workers be forks of a process that has loaded torch and its compiler, which
        optimizers load: that takes most of the time of a small training. The compiler's folder for
        temporary files is the test's.
        """
        self.environ["PET_PRELOAD"] = "torch._dynamo"
        self.environ["PET_STANDBYS"] = "0"
        self.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / "inductor")

    def script(self, text: str, name: str = "train.py") -> str:
        """Write a script that finds `rank` defined; its path."""
        path = self.folder / name
        path.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n")
        with path.open("a") as file:
            file.write(textwrap.dedent(text))
        return str(path)

    def start(
        self,
        *argv: str,
        within: Sequence[str] = (),
        command: Sequence[str] = (sys.executable, "-m", "torshrun"),
        **options: object,
    ) -> subprocess.Popen[str]:
        """Start torshrun, by a command that goes before it if one is given. Its directory, and the
        workers', is the test's.
        """
        process = subprocess.Popen(
            [*within, *command, *argv],
            **{  # type: ignore[call-overload]
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                "cwd": self.folder,
                "env": self.environ,
                **options,
            },
        )
        self._started.append(process)
        return process

    def run(self, *argv: str, within: float = 100) -> tuple[int, str, str]:
        """Run it to its end, within so many seconds: exit code, stdout, stderr."""
        process = self.start(*argv)
        out, err = process.communicate(timeout=within)
        return process.returncode, out, err

    def wait_for(self, *names: str) -> None:
        """Until workers have made these files."""
        paths = [self.folder / name for name in names]
        assert soon(lambda: all(path.exists() for path in paths), 30), os.listdir(self.folder)

    def make(self, name: str) -> None:
        """Make a file that workers wait for."""
        (self.folder / name).touch()

    def left_behind(self) -> list[int]:
        """Processes that are still there."""
        return list(marked(self.mark))


def until_line(process: subprocess.Popen[str], text: str) -> None:
    """Read stdout up to a line that contains this."""
    assert process.stdout
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"{text!r} did not appear")
