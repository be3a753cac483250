"""Job files, what torshctl render makes of them, and texts that try to break out of it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from torshrun.ctl.render import targets
from torshrun.ctl.render.job import read_job

EXAMPLE = Path(__file__).parents[2] / "configs" / "cluster.yaml"
SHELLS = ("slurm", "pbs", "lsf", "aws", "gcp", "azure")
"""Targets whose scripts a shell reads."""

HOSTILE = (
    "'; touch broken; '",
    '"; touch broken; "',
    "$(touch broken)",
    "`touch broken`",
    "${HOME}",
    "$$(HOME) $(POD_NAME)",
    "\\",
    "\\\n",
    "one\ntwo",
    "\nEND\nEND_\ntouch broken\n",
    "#SBATCH --wrap=x",
    "\n#SBATCH --wrap=x",
    "- a: b",
    "*alias",
    "&anchor",
    "!tag x",
    "{{ job }} {% raw %}",
    "{# x #}",
    "yes",
    "null",
    "0x10",
    "1:30",
    "",
    " ",
    "\t",
    "--",
    "~",
    "a'b\"c",
    "!!",
    "\x85\u2028\ufeff",
    "\x1b[31m",
    "\x7f",
    "é😀",
    "%s%n",
)
texts = st.sampled_from(HOSTILE) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12
)


def job_file(folder: Path, **changes: Any) -> str:
    """The example's job with other values for some keys; a file of it."""
    job: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(job.get(key), dict):
            job[key] = {**job[key], **value}
        else:
            job[key] = value
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in job.items() if v is not None}))
    return str(path)


def rendered(target: str, folder: Path, **changes: Any) -> str:
    return targets.render(target, read_job(job_file(folder, **changes)))


class Stubs:
    """Programs that a script calls, in a directory that stands first in PATH. `torshrun` writes
    down its arguments and variables, and those that start it run it.
    """

    LAUNCHERS = ("srun", "pbsdsh", "blaunch")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = folder / "bin"
        self._bin.mkdir(exist_ok=True)
        # Login shells, as PBS's nodes need them, make PATH anew.
        (folder / ".bash_profile").write_text(f'PATH="{self._bin}:$PATH"\n')
        self.write("torshrun", 'printf "%s\\0" "$@" > "$SEEN"; env -0 > "$SEEN.env"')
        skip = (
            "while [[ $1 == -* ]]; do case $1 in -z) shift ;; --) shift; break ;; esac; shift; done"
        )
        for name in self.LAUNCHERS:
            self.write(name, f'printf "%s\\0" "$@" > "$SEEN.{name}"\n{skip}\nexec "$@"')

    def write(self, name: str, lines: str) -> None:
        path = self._bin / name
        path.write_text(f"#!/bin/bash\n{lines}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, script: str, *arguments: str, **variables: str) -> int:
        """Run it in the folder; its exit code."""
        done = subprocess.run(
            ["bash", "-c", script, "script", *arguments],
            cwd=self.folder,
            env={
                "PATH": f"{self._bin}:{os.environ['PATH']}",
                "SEEN": str(self.folder / "seen"),
                "HOME": str(self.folder),
                **variables,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )
        return done.returncode

    def words(self, name: str = "") -> list[str]:
        """The arguments that torshrun, or the stub of this name, was called with last."""
        seen = self.folder / (f"seen.{name}" if name else "seen")
        return seen.read_bytes().decode().split("\0")[:-1]

    def variables(self) -> dict[str, str]:
        """torshrun's environment."""
        pairs = (self.folder / "seen.env").read_bytes().decode().split("\0")[:-1]
        return dict(pair.split("=", 1) for pair in pairs)
