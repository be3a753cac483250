"""Stand-ins for what schedulers start a task on each host with, where no such scheduler is."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

_PROGRAMS = {
    "pbsdsh": """
        import os, subprocess, sys
        words = sys.argv[2:]
        kept = {name: os.environ[name] for name in os.environ if name.startswith("PBS_")}
        kept |= {"HOME": os.environ["HOME"], "PATH": "/usr/bin:/bin"}
        tasks = [
            subprocess.Popen(words, env={**kept, "PBS_NODENUM": str(n), "PBS_TASKNUM": str(2 + n)})
            for n in range(2)
        ]
        sys.exit(max(task.wait() for task in tasks))
    """,
    "blaunch": """
        import os, subprocess, sys
        assert sys.argv[1:3] == ["-z", "127.0.0.1 127.0.0.2"], sys.argv
        tasks = [
            subprocess.Popen(sys.argv[3:], env={**os.environ, "LSF_PM_TASKID": str(1 + n)})
            for n in range(2)
        ]
        sys.exit(max(task.wait() for task in tasks))
    """,
}


def stand_in(name: str, folder: Path) -> None:
    """Put a program of this name into the folder. pbsdsh hands on PBS's environment, no other."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(_PROGRAMS[name])}")
    path.chmod(0o755)
