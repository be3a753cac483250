"""Whether what the workers are to run is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torsh_runtime.errors import ConfigError
from torshrun.config.job import Kind
from torshrun.config.values import any_text


def check_target(target: str, kind: Kind, environ: Mapping[str, str]) -> str:
    """The script, module or program as workers are to be given it. Raises ConfigError."""
    if not any_text(target):
        raise ConfigError("the script's name must not be empty")
    if kind == "module":
        return target
    if kind == "program":
        return _find_program(target, environ.get("PATH", os.defpath))
    script = Path(target)
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise ConfigError(f"{target} is a directory, not a script; name the script inside it")
    if not script.exists():
        raise ConfigError(f"script {target} does not exist (looked in {Path.cwd()})")
    return target


def _find_program(name: str, path: str) -> str:
    """The program's path as the shell would find it."""
    if "/" in name:
        return _check_program(name)
    for folder in path.split(os.pathsep):
        candidate = Path(folder or ".", name)
        if os.access(candidate, os.X_OK) and not candidate.is_dir():
            return str(candidate.absolute())
    raise ConfigError(f"program {name} is not in PATH")


def _check_program(name: str) -> str:
    program = Path(name)
    if not program.exists():
        raise ConfigError(f"program {name} does not exist")
    if program.is_dir():
        raise ConfigError(f"{name} is a directory, not a program")
    if not os.access(program, os.X_OK):
        raise ConfigError(f"{name} is not executable: chmod +x it, or drop --no-python")
    return name
