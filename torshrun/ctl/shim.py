"""Implements torshctl shim: lets torshrun replace torchrun in this Python environment, or not."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

from torsh_runtime.errors import ConfigError, TorshError

NAME = "torshrun_as_torchrun.pth"
VARIABLE = "TORSHRUN_AS_TORCHRUN"
OFF = ("0", "false", "no", "off")
"""Values of the variable that turn the shim off, the same as in torshrun/shim/hook.py."""
LINE = 'import sys; exec("try:\\n import torshrun.shim.hook\\nexcept ImportError: pass")\n'
"""The line that Python runs when it starts. It does nothing if torshrun is not installed."""
_OWN = ("torshrun_shim.pth", NAME)
_WORDS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


class Environment:
    """Represents a Python environment by its directories of packages and of scripts."""

    def __init__(self, packages: Path, scripts: Path) -> None:
        self._packages, self._scripts = packages, scripts
        self._file = packages / NAME

    @classmethod
    def here(cls) -> Environment:
        """Return the environment of this Python."""
        return cls(Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("scripts")))

    def install(self) -> str:
        """Install the shim and return what to print.

        Raises ConfigError if this or another shim is installed already, and TorshError if the file
        cannot be written.
        """
        if self._file.exists():
            raise ConfigError(f"the shim is installed already: {self._file}")
        other = self.other_shim()
        if other:
            raise ConfigError(f"{other} stands in for torchrun here already: remove it first")
        try:
            with self._file.open("x") as file:
                file.write(LINE)
        except OSError as error:
            raise TorshError(
                f"{self._file} cannot be written: {error.strerror}. {VARIABLE}=1 in the "
                f"environment does the same"
            ) from None
        return f"torchrun is torshrun in this environment now: {self._file}"

    def remove(self) -> str:
        """Remove the shim and return what to print.

        Raises ConfigError if it is not installed, and TorshError if the file cannot be removed.
        """
        if not self._file.exists():
            raise ConfigError(f"the shim is not installed: there is no {self._file}")
        try:
            self._file.unlink()
        except OSError as error:
            raise TorshError(f"{self._file} cannot be removed: {error.strerror}") from None
        return f"torchrun is torch's own again: {self._file} is removed"

    def status(self, environ: Mapping[str, str]) -> str:
        """Describe whether the shim is installed and active."""
        said = environ.get(VARIABLE, "")
        installed = f"installed: {self._file}" if self._file.exists() else "not installed"
        lines = [f"shim {installed}"]
        if said:
            state = "off" if said.lower() in OFF else "on"
            lines.append(f"{VARIABLE}={said}: {state}, whatever is installed")
        other = self.other_shim()
        if other:
            lines.append(f"{other} stands in for torchrun, too")
        on = said.lower() not in OFF if said else self._file.exists()
        lines.append("torchrun is torshrun" if on else "torchrun is torch's own")
        return "\n".join(lines)

    def other_shim(self) -> str:
        """Return what else replaces torchrun: a .pth file, or a script of another package.

        Returns an empty string if nothing does.
        """
        for path in sorted(self._packages.glob("*.pth")):
            if path.name not in _OWN and any(word in _text(path) for word in _WORDS):
                return str(path)
        script = self._scripts / "torchrun"
        if not script.exists() or "torch.distributed.run" in _text(script):
            return ""
        owner = _owner_of_torchrun(self._packages)
        return f"{script}{f' of {owner}' if owner else ''}"


def _owner_of_torchrun(packages: Path) -> str:
    """Return the package other than torch that has installed a script named torchrun."""
    for each in distributions(path=[str(packages)]):
        for entry in each.entry_points.select(group="console_scripts", name="torchrun"):
            if not entry.value.startswith("torch."):
                return str(each.metadata["Name"])
    return ""


def _text(path: Path) -> str:
    try:
        with path.open(errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def carry_out(action: str) -> str:
    """Carry out `install`, `remove` or `status` in this environment, and return what to print."""
    here = Environment.here()
    if action == "status":
        return here.status(os.environ)
    return here.install() if action == "install" else here.remove()
