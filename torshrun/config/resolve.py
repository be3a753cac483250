"""From options and environment to a LaunchConfig; the only reader of the launcher's environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.config.job import Kind, LaunchConfig, OutputConfig

MOST_WORKERS = 65536


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as text, and where it came from ("--nnodes", "PET_NNODES")."""

    text: str
    source: str


def _integer(setting: Setting) -> int:
    try:
        return int(setting.text)
    except ValueError:
        raise ConfigError(f"{setting.source}: {setting.text!r} is not a whole number") from None


def _workers(setting: Setting) -> int:
    number = _integer(setting)
    if number < 1:
        raise ConfigError(f"{setting.source}: at least 1 worker is needed, not {number}")
    if number > MOST_WORKERS:
        raise ConfigError(f"{setting.source}: {number} workers are too many for one node")
    return number


def _nodes(setting: Setting) -> int:
    if setting.text not in ("1", "1:1"):
        raise ConfigError(
            f"{setting.source}: {setting.text!r} is not possible: this version runs jobs on one "
            f"node only, give 1"
        )
    return 1


def _restarts(setting: Setting) -> int:
    number = _integer(setting)
    if number < 0:
        raise ConfigError(f"{setting.source}: {number} is negative; 0 means never restart")
    return number


def _port(setting: Setting) -> int:
    number = _integer(setting)
    if not 0 <= number <= 65535:
        raise ConfigError(
            f"{setting.source}: {number} is not a TCP port (1 to 65535, or 0 for a free one)"
        )
    return number


def _seconds(setting: Setting) -> float:
    try:
        number = float(setting.text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ConfigError(f"{setting.source}: {setting.text!r} is not a number of seconds >= 0")
    return number


def _text(setting: Setting) -> str:
    if not setting.text or "\0" in setting.text:
        raise ConfigError(f"{setting.source}: must not be empty")
    return setting.text


def _directory(setting: Setting) -> str:
    path = Path(_text(setting)).absolute()
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{setting.source}: {path} is not a directory")
    return str(path)


_PARSERS: Mapping[str, Callable[[Setting], object]] = {
    "nproc_per_node": _workers,
    "nnodes": _nodes,
    "max_restarts": _restarts,
    "run_id": _text,
    "role": _text,
    "master_addr": _text,
    "master_port": _port,
    "shutdown_timeout": _seconds,
    "log_dir": _directory,
}

_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "run_id": ("TORSH_RUN_ID", "TORSH_RDZV_ID", "PET_RUN_ID", "PET_RDZV_ID"),
    "master_port": ("TORSH_MASTER_PORT", "PET_MASTER_PORT", "MASTER_PORT"),
}
_OPTIONS: Mapping[str, str] = {"run_id": "--rdzv-id"}


def resolve(
    options: Mapping[str, str | None],
    *,
    target: str,
    arguments: Sequence[str],
    kind: Kind,
    environ: Mapping[str, str],
) -> LaunchConfig:
    """Make the configuration: options (None if not given) win over the environment, and that
    over defaults. Raises ConfigError naming the option or variable that is wrong.
    """
    values: dict[str, Any] = {}
    for name, parse in _PARSERS.items():
        setting = _setting(name, options.get(name), environ)
        if setting is not None:
            values[name] = parse(setting)
    values["max_nodes"] = values["min_nodes"] = values.pop("nnodes", 1)
    values["output"] = OutputConfig(log_dir=values.pop("log_dir", None))
    return LaunchConfig(
        target=_check_target(target, kind, environ),
        arguments=tuple(arguments),
        kind=kind,
        scratch_place=_scratch_place(environ),
        **values,
    )


def _setting(name: str, option: str | None, environ: Mapping[str, str]) -> Setting | None:
    if option is not None:
        return Setting(option, _OPTIONS.get(name, "--" + name.replace("_", "-")))
    inside_worker = "TORCHELASTIC_RUN_ID" in environ
    for variable in _VARIABLES.get(name, (f"TORSH_{name.upper()}", f"PET_{name.upper()}")):
        if inside_worker and variable in ("MASTER_PORT", "TORSH_RUN_ID"):
            continue  # they name the outer job
        if environ.get(variable):
            return Setting(environ[variable], variable)
    return None


def _scratch_place(environ: Mapping[str, str]) -> str:
    outer = environ.get("TORSH_SCRATCH", "")
    if outer and Path(outer).is_dir():
        return outer
    return str(Path(environ.get("TMPDIR") or "/tmp").absolute())


def _check_target(target: str, kind: Kind, environ: Mapping[str, str]) -> str:
    if kind == "module":
        return _text(Setting(target, "module"))
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
