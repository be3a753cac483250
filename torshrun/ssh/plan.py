"""Plans a job on the hosts of a hostfile. Everything is checked here, before any ssh starts."""

from __future__ import annotations

import contextlib
import fnmatch
import math
import os
import re
import secrets
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.config.collector import OTLP_VARIABLES
from torshrun.config.job import Address, LaunchConfig, OutputConfig, Timeouts
from torshrun.config.options import is_for_torshrun
from torshrun.config.request import Entry, Request
from torshrun.config.resolve import Resolution, resolve
from torshrun.config.secret import read_secret
from torshrun.config.values import Nodes
from torshrun.ssh.hostfile import Host, parse, select
from torshrun.ssh.remote import HERE
from torshrun.workers.logs.lines import is_coloured

START_TIMEOUT = 60.0
"""The most seconds from the start of a host's ssh until torshrun answers there."""
_UNKNOWN = Address("127.0.0.1", 1)
"""A placeholder for the endpoint until node 0 has named it."""
_LONGEST = 4 << 20
"""The most characters of a list of hosts."""
_OURS = (
    "hostfile include exclude ssh_command remote_python export config print_config dry_run "
    "print_completion"
)
_NOT_FOR_ALL = {
    "standalone": "the hosts of --hostfile are the job's nodes",
    "node_rank": "nodes are numbered as --hostfile lists them",
    "local_addr": "each host has an address of its own",
}
_CREDENTIALS = ("TORSH_ETCD_USER", "TORSH_ETCD_PASSWORD", *OTLP_VARIABLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsJob:
    """Describes a job on several hosts, checked as far as it can be from here."""

    request: Request
    """The request without the options of this command and of ssh."""
    hosts: tuple[Host, ...]
    config: LaunchConfig
    """The configuration of the first host, except for what only that host can know."""
    ssh_command: tuple[str, ...]
    remote_python: str
    directory: str
    """The working directory of workers, on all hosts."""
    exports: Mapping[str, str]
    """Variables for the workers on all hosts."""
    credentials: Mapping[str, str] = field(repr=False)
    """Values that agents do not find in their environment: the job's secret, etcd's user and
    password, and where --otlp sends metrics.
    """
    nodes: Nodes
    """The numbers of hosts that the job can run with."""
    meets_at_node_0: bool
    """True if the first host is to name the endpoint for the rendezvous."""
    port: int
    """The port of that endpoint. 0 is any free port."""
    silence: float
    """Seconds without a sign of life after which a connection counts as broken."""
    start_timeout: float
    notes: tuple[str, ...]
    """Lines that the user should read."""

    @property
    def stop_signal(self) -> int:
        """Return the signal that asks an agent of the job to end in an orderly way."""
        handled = self.config.signals_to_handle
        return handled[0] if handled and signal.SIGTERM not in handled else signal.SIGTERM

    def command(self, host: Host) -> tuple[str, ...]:
        """Return the command that starts torshrun on the host.

        It contains neither arguments of the job nor its secret.
        """
        module = ("-P", "-m", "torshrun.ssh.remote", f"{self.silence:g}")
        if host.is_here:
            return (sys.executable, *module, HERE)
        pause = max(1, math.floor(self.silence / 3))
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": max(1, math.ceil(self.start_timeout / 2)),
            "ServerAliveInterval": pause,
            "ServerAliveCountMax": 3,
            "RemoteCommand": "none",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        words += ["-T", *(("-p", str(host.port)) if host.port else ()), "--", host.address]
        return (*self.ssh_command, *words, f"exec {shlex.join((self.remote_python, *module))}")

    def told(
        self, node_rank: int, hosts: Sequence[Host], endpoint: Address | None, spent: float = 0.0
    ) -> dict[str, Any]:
        """Return the job for the host of that rank, as an object for JSON.

        `hosts` are those of all nodes. `endpoint` is where they rendezvous, if the first of them
        has named it. `spent` are seconds of the job's time since it was planned.
        """
        host = hosts[node_rank]
        request = _request_of(self.request, host, node_rank, self.nodes, endpoint)
        request = _with_less_time(request, spent)
        chosen = ",".join(map(str, host.chosen))
        devices = {"CUDA_VISIBLE_DEVICES": chosen} if chosen else {}
        return {
            "entries": {key: list(_texts(entry)) for key, entry in request.entries.items()},
            "target": list(_texts(request.target)) if request.target else None,
            "arguments": [list(_texts(argument)) for argument in request.arguments],
            "environment": {name: list(_texts(e)) for name, e in request.environment.items()},
            "exports": {**self.exports, **devices},
            "credentials": dict(self.credentials),
            "directory": self.directory,
            "grace": self.config.shutdown_timeout,
            "stop_signal": self.stop_signal,
        }


def plan(request: Request, environ: Mapping[str, str], *, needs_target: bool = True) -> HostsJob:
    """Read the hostfile and check everything. Raises ConfigError with the place of the mistake."""
    if needs_target and request.target is None:
        raise ConfigError("SCRIPT is missing: name it after the options (torshrun --help)")
    for key, why in _NOT_FOR_ALL.items():
        if request[key]:
            raise request.refused(key, f"not with --hostfile: {why}")
    if request["events"] == "-":
        why = "lines of several hosts would mix: name a file, which each host writes for itself"
        raise request.refused("events", why)
    hosts = _hosts(request)
    nodes = _nodes(request, hosts)
    common = _for_hosts(request, environ)
    credentials = _credentials(request, environ)
    meets_at_node_0 = _meets_at_node_0(request, nodes)
    endpoint = _UNKNOWN if meets_at_node_0 else None
    first = _request_of(common, hosts[0], 0, nodes, endpoint)
    config, notes = _resolved_here(first, {**environ, **credentials})
    waits = config.rendezvous or Timeouts()
    return HostsJob(
        request=common,
        hosts=hosts,
        config=config,
        ssh_command=_ssh_command(request),
        remote_python=request["remote_python"] or sys.executable,
        directory=_directory(environ),
        exports=MappingProxyType(_exports(request, environ)),
        credentials=MappingProxyType(credentials),
        nodes=nodes,
        meets_at_node_0=meets_at_node_0,
        port=request["master_port"] or 0,
        silence=waits.ttl,
        start_timeout=min(START_TIMEOUT, waits.join_timeout),
        notes=notes,
    )


def _resolved_here(request: Request, environ: Mapping[str, str]) -> Resolution:
    """Resolve the request as a host will, except for its GPUs and the script."""
    workers = replace(request.entries["nproc_per_node"], text="1")
    known = replace(request, target=None, entries={**request.entries, "nproc_per_node": workers})
    return resolve(known, environ, needs_target=False)


def _credentials(request: Request, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the credentials, with a new secret for the job if none is given."""
    secret = read_secret(request["secret_file"], request.name("secret_file"), environ)
    given = {name: environ[name] for name in _CREDENTIALS if name in environ}
    return {**given, "TORSH_SECRET": secret or secrets.token_hex(32)}


def _hosts(request: Request) -> tuple[Host, ...]:
    """Return the selected hosts, only the first N if --nnodes is N."""
    name = request["hostfile"]
    try:
        text = sys.stdin.read(_LONGEST + 1) if name == "-" else _file(name)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise request.refused("hostfile", f"{name} cannot be read: {why}") from None
    if len(text) > _LONGEST:
        raise request.refused("hostfile", f"{name} is longer than any list of hosts")
    listed = parse(text, "stdin" if name == "-" else name)
    hosts = select(listed, request["include"] or "", request["exclude"] or "")
    wanted = _nodes(request, hosts)
    if wanted.fewest > len(hosts):
        why = f"{wanted.fewest} nodes need as many hosts, and there are {len(hosts)}"
        raise request.refused("nnodes", why)
    chosen = hosts[: wanted.most] if wanted.fewest == wanted.most else hosts
    for host in chosen:
        _workers(request, host)
    return chosen


def _file(path: str) -> str:
    with Path(path).open(encoding="utf-8") as file:
        return file.read(_LONGEST + 1)


def _nodes(request: Request, hosts: Sequence[Host]) -> Nodes:
    """Return the numbers of nodes: all hosts, unless --nnodes says otherwise."""
    asked: Nodes = request["nnodes"]
    return asked if request.has("nnodes") else Nodes(len(hosts), len(hosts))


def _workers(request: Request, host: Host) -> str:
    """Return the host's number of workers: --nproc-per-node if given, else its slots.

    Raises ConfigError if that is more than the host has slots.
    """
    slots = len(host.chosen) or host.slots
    asked = request["nproc_per_node"]
    if not request.has("nproc_per_node"):
        return str(slots or 1)
    most = len(host.chosen) or host.max_slots or host.slots
    if isinstance(asked, int) and most and asked > most:
        raise request.refused(
            "nproc_per_node", f"{asked} is more than {host.place} gives {host.label}: {most} slots"
        )
    return str(asked)


def _meets_at_node_0(request: Request, nodes: Nodes) -> bool:
    given = request["rdzv_endpoint"] or request.has("master_addr")
    return nodes.most > 1 and request["rdzv_backend"] != "etcd" and not given


def _request_of(
    request: Request, host: Host, node_rank: int, nodes: Nodes, endpoint: Address | None
) -> Request:
    """Return the request for this host's agent."""
    changed: dict[str, str | None] = {"nproc_per_node": _workers(request, host)}
    if nodes.fewest == nodes.most:
        changed["nnodes"] = str(nodes.most)
        if request["rdzv_backend"] == "static":
            changed["node_rank"] = str(node_rank)
    elif not request.has("rdzv_backend"):
        changed["rdzv_backend"] = "tcp"
    if endpoint:
        changed |= {"rdzv_endpoint": str(endpoint), "master_port": None}
    names = {key: request.name(key) for key in changed}
    entries = {key: Entry(text, "--hostfile", names[key]) for key, text in changed.items()}
    return replace(request, entries={**request.entries, **entries})


def _for_hosts(request: Request, environ: Mapping[str, str]) -> Request:
    """Remove the options of this command, and add values that a host cannot know."""
    unset = {key: replace(request.entries[key], text=None) for key in _OURS.split()}
    for key in ("print_config", "dry_run"):
        unset[key] = replace(unset[key], text="false")
    unset["secret_file"] = replace(request.entries["secret_file"], text=None)
    given = {key: request.entries[key] for key in ("color", "run_id")}
    on_terminal = os.isatty(1) and os.isatty(2)
    coloured = is_coloured(OutputConfig(color=request["color"]), on_terminal, environ)
    given["color"] = replace(given["color"], text="always" if coloured else "never")
    if given["run_id"].text is None:
        given["run_id"] = replace(given["run_id"], text=secrets.token_hex(8))
    return replace(request, entries={**request.entries, **unset, **given})


def _with_less_time(request: Request, spent: float) -> Request:
    """Reduce the time limit by `spent` seconds, if there is one."""
    limit = request["time_limit"]
    if limit is None:
        return request
    left = replace(request.entries["time_limit"], text=f"{max(limit - spent, 0.0):.3f}")
    return replace(request, entries={**request.entries, "time_limit": left})


def _ssh_command(request: Request) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(request["ssh_command"]))
    except ValueError as error:
        raise request.refused("ssh_command", f"it cannot be split into words: {error}") from None
    if not words:
        raise request.refused("ssh_command", "must not be empty")
    return words


def _exports(request: Request, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that --export names: NAME, NAME=VALUE or a pattern like NCCL_*."""
    found: dict[str, str] = {}
    for item in request["export"]:
        name, equals, value = item.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*" if equals else r"[A-Za-z0-9_*?]+", name):
            why = f"{item!r} is not NAME, NAME=VALUE or a pattern like NCCL_*"
            raise request.refused("export", why)
        if is_for_torshrun(name):
            why = f"{name} belongs to torshrun: workers get it only by environment: in a file"
            raise request.refused("export", why)
        found |= {name: value} if equals else dict(_matching(name, environ))
        if not equals and "*" not in name and "?" not in name and name not in environ:
            raise request.refused("export", f"{name} is not set here: give {name}=VALUE")
    return found


def _matching(pattern: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return (
        pair
        for pair in environ.items()
        if fnmatch.fnmatchcase(pair[0], pattern) and not is_for_torshrun(pair[0])
    )


def _directory(environ: Mapping[str, str]) -> str:
    """Return the working directory by the name that the user knows.

    Links may be the same on all hosts.
    """
    here, name = Path.cwd(), Path(environ.get("PWD", ""))
    with contextlib.suppress(OSError):
        if name.is_absolute() and name.samefile(here):
            return str(name)
    return str(here)


def _texts(entry: Entry) -> tuple[str | None, str, str]:
    return entry.text, entry.origin, entry.name


def describe(job: HostsJob) -> str:
    """Describe for --dry-run what would be started where. Starts and chooses nothing."""
    request = job.request
    count = len(job.hosts)
    who = (
        "1 host would start an agent" if count == 1 else f"{count} hosts would start an agent each"
    )
    lines = [f"{who}; nothing has been started.\n"]
    for rank, host in enumerate(job.hosts):
        number = _workers(request, host)
        workers = f"{number} worker{'' if number == '1' else 's'}"
        lines.append(f"\nNode {rank}, {host.label}: {workers}\n")
        lines.append(f"  {shlex.join(job.command(host))}\n")
    words = [request.target, *request.arguments] if request.target else []
    texts = [entry.text or "" for entry in words]
    lines.append(f"\nThere, in {job.directory}: {shlex.join(texts)}\n")
    lines += [f"  {name}\n" for name in job.exports]  # values may be secrets
    return "".join(lines)
