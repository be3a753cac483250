"""Turns a request into a LaunchConfig, by the rules that concern more than one option."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torsh_runtime.errors import ConfigError
from torshrun.config.collector import collector
from torshrun.config.debugging import debugged, debugging_notes
from torshrun.config.job import (
    Kind,
    LaunchConfig,
    OutputConfig,
)
from torshrun.config.options import OPTIONS
from torshrun.config.progress import progress_notes, progress_server
from torshrun.config.request import Request
from torshrun.config.resolve_rendezvous import first_endpoint, is_alone, is_static, rendezvous
from torshrun.config.surroundings import cluster_notes
from torshrun.config.values import CONF_WITHOUT_EFFECT, LOCAL, Endpoint
from torshrun.topology.cpus import usable_cpus

_INERT = [(option.key, option.without_effect) for option in OPTIONS if option.without_effect]


class Resolution(NamedTuple):
    """A valid job, and what its user ought to know."""

    job: LaunchConfig
    notes: tuple[str, ...]
    """A line each about what was given and comes to nothing."""


def resolve(
    request: Request,
    environ: Mapping[str, str],
    *,
    new_id: Callable[[], str] = lambda: os.urandom(8).hex(),
    needs_target: bool = True,
    is_debugged: bool = False,
) -> Resolution:
    """Make the job. `environ` is torshrun's own; `new_id` names a job that is to have a name of
    its own; `is_debugged`: whether a debugger follows torshrun into the workers. Raises
    ConfigError naming the option, variable or line of a file that is wrong.
    """
    fields = _check(request, environ, new_id)
    workers = fields["nproc_per_node"]
    fields |= debugged(request, workers, is_debugged=is_debugged)
    target = ""
    if request.target is not None:
        target = _check_target(request.target.text or "", fields["kind"], environ)
    elif needs_target:
        raise ConfigError(
            "SCRIPT is missing: name it after the options, or in a --config file as script:, "
            "module: or program: (torshrun --help lists the options)"
        )
    said = (
        *_notes(request, workers, environ),
        *progress_notes(environ),
        *debugging_notes(request, workers, is_debugged=is_debugged),
    )
    return Resolution(LaunchConfig(target=target, **fields), said)


def _check(
    request: Request, environ: Mapping[str, str], new_id: Callable[[], str]
) -> dict[str, Any]:
    """Return LaunchConfig's fields except target. Raise ConfigError for the first wrong option."""
    for option in OPTIONS:
        request[option.key]
    alone = is_alone(request)
    if alone and request["node_rank"] and not request["standalone"]:
        raise request.refused(
            "node_rank",
            f"{request['node_rank']} is not possible: the job has one node, whose rank is 0; "
            f"--nnodes says how many it has",
        )
    _check_recovery(request, alone)
    extras = {name: extra.text for name, extra in request.environment.items()}
    fewest, most = (1, 1) if alone else request["nnodes"]
    hints = request.hints
    addr, port = _master(request) if alone and is_static(request) else ("127.0.0.1", 0)
    return {
        **_fields(request, LaunchConfig),
        "arguments": tuple(argument.text for argument in request.arguments),
        "environment": MappingProxyType(extras),
        "kind": _kind(request),
        "nproc_per_node": _workers(request, environ),
        "min_nodes": fewest,
        "max_nodes": most,
        "rendezvous": None if alone else rendezvous(request, environ),
        "run_id": request["run_id"] or (new_id() if alone else "none"),
        "master_addr": addr,
        "master_port": port,
        "error_file": environ.get("TORCHELASTIC_ERROR_FILE") or None,
        "scratch_place": _scratch_place(environ),
        "otlp": collector(request, environ),
        "progress": progress_server(environ),
        "signals_reach_workers": bool(hints and hints.signals_reach_workers),
        "requeues": hints.requeues if hints and request["requeue_on_preempt"] else "",
        "output": OutputConfig(**_fields(request, OutputConfig)),
    }


def _check_recovery(request: Request, alone: bool) -> None:
    """Raise ConfigError if copies of workers are asked for where none can take their place."""
    if not request["recover"]:
        return
    if not request["max_restarts"]:
        why = "each worker that is replaced counts as a restart: give --max-restarts, too"
        raise request.refused("recover", why)
    if not alone:
        why = "it is for jobs of one node: call tr.elastic.join() in the script for several"
        raise request.refused("recover", why)
    if request["pid_namespace"]:
        raise request.refused("recover", f"{request.name('pid_namespace')} excludes it")


def _fields(request: Request, kind: type[LaunchConfig | OutputConfig]) -> dict[str, Any]:
    """Return the values of the options that are fields of this class."""
    names = kind.__dataclass_fields__
    return {option.key: request[option.key] for option in OPTIONS if option.key in names}


def _master(request: Request) -> tuple[str, int]:
    """Return MASTER_ADDR and MASTER_PORT with one node: of the static endpoint, else those given.

    Without static torchrun takes neither, so that jobs that name the same port do not collide.
    """
    endpoint = first_endpoint(request)
    if endpoint is None:
        return request["master_addr"], request["master_port"] or 0
    if endpoint.port is None:
        why = f"with --rdzv-backend static it needs a port, like {endpoint.host}:29500"
        raise request.refused("rdzv_endpoint", why)
    return endpoint.host, endpoint.port


def _workers(request: Request, environ: Mapping[str, str]) -> int:
    asked: int | str = request["nproc_per_node"]
    if isinstance(asked, int):
        return asked
    number = 0
    if asked in ("gpu", "auto"):
        from torshrun.topology import gpus

        number = len(gpus.visible(environ))
    if asked == "gpu" and number == 0:
        why = "no GPU can be used here; give a number, cpu or auto"
        raise request.refused("nproc_per_node", why)
    return int(number) or usable_cpus(environ)


def _kind(request: Request) -> Kind:
    if request["run_path"]:
        return "path"
    if request["module"] and request["no_python"]:
        names = f"{request.name('module')} and {request.name('no_python')}"
        raise ConfigError(f"{names} exclude each other")
    return "module" if request["module"] else "program" if request["no_python"] else "script"


def _scratch_place(environ: Mapping[str, str]) -> str:
    outer = environ.get("TORSH_SCRATCH", "")
    if outer and Path(outer).is_dir():
        return outer
    return str(Path(environ.get("TMPDIR") or "/tmp").absolute())


def _check_target(target: str, kind: Kind, environ: Mapping[str, str]) -> str:
    """Return the script, module or program in the form for workers.

    Raise ConfigError if it does not exist.
    """
    if not target:
        raise ConfigError("the script's name must not be empty")
    if kind == "module":
        _check_module(target)
        return target
    if kind == "program":
        return _find_program(target, environ.get("PATH", os.defpath))
    script = Path(target)
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise ConfigError(f"{target} is a directory, not a script; name the script inside it")
    if not script.exists():
        told = f"script {target} does not exist (looked in {Path.cwd()})"
        if re.fullmatch(r"python[\d.]*", target):
            told += f"; leave the word {target} out: torshrun runs scripts with the Python it has"
        raise ConfigError(told)
    return target


def _check_module(name: str) -> None:
    """Raise ConfigError if the name is a file's, though x.py could be the module py of a package
    x.
    """
    if "/" not in name and name.endswith(".py") and Path(name).is_file():
        module = name.removesuffix(".py")
        raise ConfigError(
            f"{name} is a file, and -m takes a module's name: give {module}, or leave -m out"
        )


def _find_program(name: str, path: str) -> str:
    """Return the program's path as the shell would find it. Raise ConfigError if it does not."""
    import shutil

    found = shutil.which(name, path=path)
    if found:
        return found if "/" in name else str(Path(found).absolute())
    if "/" not in name:
        raise ConfigError(f"program {name} is not in PATH")
    if not Path(name).exists():
        raise ConfigError(f"program {name} does not exist")
    if Path(name).is_dir():
        raise ConfigError(f"{name} is a directory, not a program")
    raise ConfigError(f"{name} is not executable: chmod +x it, or drop --no-python")


# ---- options without effect: one line each, never an error


def _notes(request: Request, workers: int, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line about each option that has no effect, or that is missed.

    Options that only say at length that there is one node (--nnodes 1, --node-rank 0, a rendezvous'
    endpoint) deserve none.
    """
    alone = is_alone(request)
    yield from cluster_notes(request, environ, alone=alone)
    if request["rdzv_backend"] == "etcd" and not alone and not request.knows("run_id"):
        yield (
            "--rdzv-id is not given: this job is one with any other at this etcd that has none "
            "either"
        )
    for key, why in (*_idle(request), *_overruled(request), *_INERT):
        if request.has(key):
            yield f"{request.name(key)} has no effect: {why}"
    if request["straggler_threshold"] and environ.get("TORSH_RECORDER") == "off":
        name = request.name("straggler_threshold")
        yield f"{name} has no effect: TORSH_RECORDER is off, so nothing is known of steps"
    for key in request["rdzv_conf"]:
        if key in CONF_WITHOUT_EFFECT:
            yield f"{request.name('rdzv_conf')}: {key} has no effect here"
    numbered = {"local_ranks_filter": "local ranks"} | ({"ranks_filter": "ranks"} if alone else {})
    for key, ranks in numbered.items():
        if request[key] and min(request[key]) >= workers:
            yield f"{request.name(key)} names no worker: their {ranks} are 0 to {workers - 1}"


def _idle(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the options that have no use in such a job, and why."""
    is_slurms = request.hints is not None and request.hints.cluster == "slurm"
    if request["requeue_on_preempt"] and not is_slurms:
        yield "requeue_on_preempt", "this is no job of Slurm's"
    for key in ("module", "no_python"):
        if request["run_path"] and request[key]:
            yield key, "--run-path wins"
    if is_alone(request):
        for key in ("local_addr", "secret_file"):
            yield key, "with one node nobody asks for it"
    elif not is_static(request):
        yield "node_rank", "only --rdzv-backend static has fixed ranks"


def _overruled(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the options that contradict what is used for the nodes, or for rank 0's place."""
    given, holds = first_endpoint(request), Endpoint("127.0.0.1", 0)
    why = "only --rdzv-backend static uses it"
    if request["standalone"]:
        why = "--standalone is given"
        if request["nnodes"] != (1, 1):
            yield "nnodes", why
        if request["node_rank"]:
            yield "node_rank", why
        if request["rdzv_backend"] == "etcd":
            yield "rdzv_backend", why
        if given and (given.port or given.host not in LOCAL):
            yield "rdzv_endpoint", why
    elif is_static(request):
        if given is None:
            return
        holds, why = given, "--rdzv-endpoint says where rank 0 listens"
    if request["master_addr"] not in (holds.host, *LOCAL):
        yield "master_addr", why
    if (request["master_port"] or 0) != holds.port:
        yield "master_port", why
