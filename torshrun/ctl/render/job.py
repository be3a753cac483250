"""Reads a job file as the templates use it: a ClusterJob, validated before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.config.options import OPTIONS
from torshrun.config.request import TARGETS, Request, gather
from torshrun.config.values import Nodes
from torshrun.ctl.render.keys import SECTIONS, read_section

_MARGIN = 15
"""Seconds that torshrun has after its workers' end before it is killed as well."""
_NOT_RENDERED = {
    "local_addr": "it differs on each node; torshrun finds it",
    "master_addr": "the nodes rendezvous where the rendered file says, or at rdzv_endpoint",
    "master_port": "the nodes rendezvous where the rendered file says, or at rdzv_endpoint",
    "node_rank": "it differs on each node",
    **dict.fromkeys(
        ("hostfile", "include", "exclude", "ssh_command", "remote_python", "export"),
        "the scheduler starts torshrun on each node, and not ssh",
    ),
    "scheduler": "torshrun detects it where the rendered file runs",
    "time_limit": "give cluster: time_limit, which tells the scheduler",
    "standalone": "nodes that do not rendezvous are no job",
}
"""Options that a rendered file cannot give, and the reason."""
_OF_SHELLS = """
    BASHOPTS BASHPID BASH_COMMAND BASH_SUBSHELL BASH_VERSINFO DIRSTACK EPOCHREALTIME EPOCHSECONDS
    EUID FUNCNAME GROUPS HISTCMD LINENO OPTIND PIPESTATUS PPID RANDOM SECONDS SHELLOPTS SHLVL
    SRANDOM UID _
"""
"""Variables that bash, which runs the rendered script, sets itself or refuses to set."""
_OF_THE_PLACE = ("nnodes", "nproc_per_node", "run_id", "shutdown_timeout")
"""Options with a field of their own, which each template gives in the way that its target needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """Holds what a job file says, complete and checked."""

    source: str
    """The file's name, for people."""
    name: str
    nodes: Nodes
    workers: str
    """The value of nproc_per_node. Empty leaves the number to torshrun."""
    run_id: str
    """The run id. Empty if the scheduler or cloud names the job."""
    options: tuple[str, ...]
    """The other options of torshrun, as words of the command line."""
    target: tuple[str, ...]
    """The words after the options: the script and its arguments."""
    environment: Mapping[str, str]
    """Variables for all workers."""
    meets: bool
    """True if the options say where the nodes rendezvous."""
    has_secret: bool
    """True if the options name a file with the secret."""
    shutdown_timeout: int
    """Seconds that workers have after SIGTERM."""
    own_shutdown_timeout: bool
    """True if the file sets it, rather than deriving it from the notice."""
    cpus: int | None
    gpus: int
    memory: int | None
    """Bytes per node. None leaves them to the scheduler."""
    time_limit: int | None
    """Seconds, or None for no limit."""
    notice: int
    """Seconds between the warning and the end of the job."""
    requeue: bool
    modules: tuple[str, ...]
    setup: str | None
    image: str | None
    port: int
    places: Mapping[str, Mapping[str, Any]]
    """The sections for single schedulers and clouds, by name."""

    @property
    def grace(self) -> int:
        """Return the seconds between SIGTERM and SIGKILL for torshrun itself."""
        return self.shutdown_timeout + _MARGIN

    @property
    def is_elastic(self) -> bool:
        return self.nodes.fewest < self.nodes.most


def read_job(path: str) -> ClusterJob:
    """Read the file that torshrun's --config takes, with its `cluster` section.

    Raises ConfigError for any mistake in it, with its line.
    """
    request = gather({"config": path}, None, (), {})
    for option in OPTIONS:
        request[option.key]
        if request.has(option.key) and option.key in _NOT_RENDERED and request[option.key]:
            raise request.refused(option.key, f"cannot be rendered: {_NOT_RENDERED[option.key]}")
    if request.has("rdzv_backend") and not request.has("rdzv_endpoint"):
        why = "give rdzv_endpoint too, or leave both to the rendered file"
        raise request.refused("rdzv_backend", why)
    _check_texts(request)
    section = read_section(request.cluster)
    places = {name: section.pop(name) for name in SECTIONS if name != "cluster"}
    workers = _workers(request, section["gpus"])
    notice = section["notice"]
    is_given = request.has("shutdown_timeout")
    return ClusterJob(
        **{
            **section,
            "name": section["name"] or _name(request),
            "nodes": section["nodes"] or request["nnodes"],
            "cpus": section["cpus"] or (int(workers) if workers.isdigit() else None),
        },
        source=PurePath(path).name,
        workers=workers,
        run_id=request["run_id"] or "",
        options=tuple(_options(request)),
        target=tuple(_target(request)),
        environment=MappingProxyType({k: e.text or "" for k, e in request.environment.items()}),
        meets=request.has("rdzv_endpoint"),
        has_secret=request.has("secret_file"),
        shutdown_timeout=round(request["shutdown_timeout"]) if is_given else notice,
        own_shutdown_timeout=is_given,
        places=MappingProxyType(places),
    )


def _check_texts(request: Request) -> None:
    """Raise ConfigError for texts that a file cannot contain or a shell cannot set."""
    for name, entry in request.environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigError(f"{entry.name}: no shell can set a variable of this name")
        if name in _OF_SHELLS.split():
            raise ConfigError(f"{entry.name}: bash sets {name} itself: take another name")
        if name.startswith(("TORSH_", "PET_")):
            raise ConfigError(
                f"{entry.name}: {name} would be read as an option of torshrun in the rendered job: "
                "give the option itself"
            )
    target = (request.target,) if request.target else ()
    entries = (*request.entries.values(), *target, *request.arguments)
    for entry in (*entries, *request.environment.values()):
        try:
            (entry.text or "").encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{entry.name}: {entry.text!r} cannot be written in UTF-8") from None


def _workers(request: Request, gpus: int) -> str:
    if request.has("nproc_per_node"):
        return str(request["nproc_per_node"])
    return str(gpus) if gpus else ""


def _name(request: Request) -> str:
    """Return a name for the job, derived from the name of its script."""
    stem = PurePath(request.target.text or "").stem if request.target else ""
    word = re.sub("[^a-z0-9]+", "-", stem.lower()).strip("-")[:32].rstrip("-")
    return word if word[:1].isalpha() else f"job-{word}".rstrip("-")


def _options(request: Request) -> Iterator[str]:
    for option in OPTIONS:
        entry = request.entries[option.key]
        if not request.has(option.key) or option.key in (*_OF_THE_PLACE, *_NOT_RENDERED, "config"):
            continue
        if not option.is_flag:
            yield f"{option.spellings[-1]}={entry.text}"
        elif request[option.key]:
            yield option.spellings[-1]


def _target(request: Request) -> Iterator[str]:
    if request.target is None:
        names = ", ".join(TARGETS)
        raise ConfigError(f"the file does not say what to run: it needs one of {names}")
    words = [request.target.text or "", *(argument.text or "" for argument in request.arguments)]
    yield from ["--"] if words[0].startswith("-") or words[1:2] == ["--"] else []
    yield from words
