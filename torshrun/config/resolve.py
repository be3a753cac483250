"""From settings to a LaunchConfig: the rules that are about more than one option."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.config.job import Kind, LaunchConfig, OutputConfig
from torshrun.config.nodes import first_endpoint, is_alone, rendezvous
from torshrun.config.notes import is_static, notes
from torshrun.config.options import OPTIONS
from torshrun.config.setting import Settings
from torshrun.config.target import check_target
from torshrun.config.values import Endpoint, Nodes, worker_count
from torshrun.topology.cpus import usable_cpus


@dataclass(frozen=True, slots=True)
class Resolution:
    """A valid job, and what its user ought to know."""

    job: LaunchConfig
    """The job."""
    notes: tuple[str, ...]
    """A line each about what was given and comes to nothing."""


def _new_id() -> str:
    import uuid

    return str(uuid.uuid4())


def resolve(
    settings: Settings, environ: Mapping[str, str], *, new_id: Callable[[], str] = _new_id
) -> Resolution:
    """Make the job. `environ` is torshrun's own; `new_id` names a job that is to have a name of
    its own. Raises ConfigError naming the option, variable or line of a file that is wrong.
    """
    if settings.target is None:
        raise ConfigError(
            "SCRIPT is missing: name it after the options, or in a --config file as script:, "
            "module: or program: (torshrun --help lists the options)"
        )
    fields, said = _check(settings, environ, new_id)
    target = check_target(settings.target.text or "", fields["kind"], environ)
    return Resolution(LaunchConfig(target=target, **fields), said)


def validate(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The notes that resolve would give; no target is needed. Raises ConfigError as it would."""
    if settings.target is not None:
        return resolve(settings, environ).notes
    return _check(settings, environ, _new_id)[1]


def _check(
    settings: Settings, environ: Mapping[str, str], new_id: Callable[[], str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """LaunchConfig's fields but target, and the notes."""
    values = settings.values()
    fields = {
        **_fields(LaunchConfig, values),
        **_master(settings, values),
        **_size(values),
        "rendezvous": rendezvous(settings, values, environ),
        "nproc_per_node": _workers(settings, values, environ),
        "arguments": tuple(argument.text for argument in settings.arguments),
        "environment": MappingProxyType(
            {name: extra.text for name, extra in settings.environment.items()}
        ),
        "kind": _kind(settings, values),
        "scratch_place": _scratch_place(environ),
        "error_file": environ.get("TORCHELASTIC_ERROR_FILE") or None,
        "output": OutputConfig(**_fields(OutputConfig, values)),
    }
    if values["standalone"] and not settings["run_id"].given:
        fields["run_id"] = new_id()
    return fields, tuple(notes(settings, values, fields["nproc_per_node"]))


def _fields(
    kind: type[LaunchConfig] | type[OutputConfig], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The values that are fields as they are; where there is none the field has its default."""
    names = {field.name for field in dataclasses.fields(kind)}
    found = {option.field or option.key: values[option.key] for option in OPTIONS}
    return {name: found[name] for name in names & found.keys() if found[name] is not None}


def _size(values: Mapping[str, Any]) -> dict[str, int]:
    if is_alone(values):
        return {"min_nodes": 1, "max_nodes": 1}
    nodes: Nodes = values["nnodes"]
    return {"min_nodes": nodes.fewest, "max_nodes": nodes.most}


def _master(settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """master_addr and master_port: those of the static endpoint, else those given. Without static
    torchrun takes neither, so that jobs whose scripts name the same port do not collide.
    """
    if not (is_static(values) and is_alone(values)):
        return {"master_addr": "127.0.0.1", "master_port": 0}
    endpoint: Endpoint | None = first_endpoint(values)
    if endpoint is None:
        return {"master_addr": values["master_addr"], "master_port": values["master_port"] or 0}
    if endpoint.port is None:
        raise ConfigError(
            f"{settings['rdzv_endpoint'].name}: with --rdzv-backend static it needs a port, like "
            f"{endpoint.host}:29500"
        )
    return {"master_addr": endpoint.host, "master_port": endpoint.port}


def _workers(settings: Settings, values: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    asked: int | str = values["nproc_per_node"]
    if isinstance(asked, int):
        return asked
    name = settings["nproc_per_node"].name
    number = 0
    if asked in ("gpu", "auto"):
        from torshrun.topology import gpus

        number = gpus.count(environ)
    if asked == "gpu" and number == 0:
        raise ConfigError(f"{name}: no GPU can be used here; give a number, cpu or auto")
    return worker_count(number or usable_cpus())


def _kind(settings: Settings, values: Mapping[str, Any]) -> Kind:
    if values["run_path"]:
        return "path"
    if values["module"] and values["no_python"]:
        names = f"{settings['module'].name} and {settings['no_python'].name}"
        raise ConfigError(f"{names} exclude each other")
    return "module" if values["module"] else "program" if values["no_python"] else "script"


def _scratch_place(environ: Mapping[str, str]) -> str:
    outer = environ.get("TORSH_SCRATCH", "")
    if outer and Path(outer).is_dir():
        return outer
    return str(Path(environ.get("TMPDIR") or "/tmp").absolute())
