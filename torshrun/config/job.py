"""LaunchConfig: one job, as asked for. Frozen, validated and complete at birth.

A field without a word of its own is the value of the option with its name: config/options.py tells
its unit, and what 0 and None mean.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Flag
from types import MappingProxyType
from typing import Literal, NamedTuple

from torsh_runtime.contract import WorkerEnv

Kind = Literal["script", "module", "program", "path"]
Backend = Literal["static", "tcp", "etcd"]
NumaBinding = Literal["node", "socket", "exclusive", "core-complex"]
HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Streams(Flag):
    """Some of a worker's streams, as --redirects and --tee number them."""

    NONE = 0
    STDOUT = 1
    STDERR = 2
    BOTH = 3


@dataclass(frozen=True, slots=True)
class StreamRule:
    """--redirects or --tee: streams by rank, and for ranks that are not named."""

    everyone: Streams = Streams.NONE
    """Rule for ranks that are named in neither mapping."""
    by_local_rank: Mapping[int, Streams] = field(default_factory=lambda: MappingProxyType({}))
    """Rules by local rank, as in torchrun: "0:1,1:3"."""
    by_rank: Mapping[int, Streams] = field(default_factory=lambda: MappingProxyType({}))
    """Rules by global rank, "r0:1,r8:3", which take precedence over the local rank."""

    def streams(self, worker: WorkerEnv) -> Streams:
        """Return this worker's streams. Once a rank is named, others have none, as in torchrun."""
        if worker.rank in self.by_rank:
            return self.by_rank[worker.rank]
        return self.by_local_rank.get(worker.local_rank, self.everyone)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """Says where the workers' output goes."""

    log_dir: str | None = None
    redirects: StreamRule = StreamRule()
    tee: StreamRule = StreamRule()
    """Streams that are shown and kept. With a log_dir and neither rule, all streams are kept."""
    log_line_prefix_template: str | None = None
    local_ranks_filter: frozenset[int] | None = None
    ranks_filter: frozenset[int] | None = None
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    log_timestamps: bool = False
    log_rotate: int = 0
    color: Literal["auto", "always", "never"] = "auto"
    status_line: Literal["auto", "never"] = "auto"

    def shown(self, worker: WorkerEnv) -> Streams:
        """Return which of this worker's streams the console shows."""
        ranks, local_ranks = self.ranks_filter, self.local_ranks_filter
        hidden = ranks is not None and worker.rank not in ranks
        if hidden or (local_ranks is not None and worker.local_rank not in local_ranks):
            return Streams.NONE
        return ~self.redirects.streams(worker) | self.tee.streams(worker)

    def kept(self, worker: WorkerEnv) -> Streams:
        """Return which of this worker's streams are kept in stdout.log and stderr.log."""
        if self.log_dir is not None and self.redirects == self.tee == StreamRule():
            return Streams.BOTH
        return self.redirects.streams(worker) | self.tee.streams(worker)

    def needs_folder(self) -> bool:
        """Return whether something may have to be kept, so that the job needs a log directory."""
        filtered = self.duplicate_stdout_filters or self.duplicate_stderr_filters
        ruled = (self.redirects, self.tee) != (StreamRule(), StreamRule())
        return self.log_dir is not None or ruled or bool(filtered)


class Address(NamedTuple):
    """Represents an address to listen on or connect to."""

    host: str
    """A name or an address, IPv6 without brackets."""
    port: int
    """1 to 65535."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Represents a collector of OpenTelemetry."""

    url: str
    """To which /v1/metrics and /v1/logs are added."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Headers of each request; they may hold credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressServer:
    """Kubeflow Trainer's, for one TrainJob."""

    url: str
    ca_file: str
    """File with the authorities that it is believed by; "" is the system's."""
    token_file: str
    """File with the token that the job proves with which TrainJob it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Says how to connect and log in to etcd."""

    tls: bool = False
    """True if etcd is reached over TLS."""
    cacert: str = ""
    """File with the authorities that it is believed by; "" is the system's."""
    cert: str = ""
    """File with this side's certificate; "" is none."""
    key: str = ""
    """File with that certificate's key."""
    user: str = ""
    """Name to log in with; "" is not at all."""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits how long the nodes of a job wait for each other, in seconds."""

    join_timeout: float = 600.0
    """For the least number of nodes."""
    last_call_timeout: float = 30.0
    """For more nodes, once the job could begin or grow."""
    close_timeout: float = 30.0
    """After the job's end, while its verdict can be read; then its name is free again."""
    ttl: float = 15.0
    """After its last sign of life, before a node counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousConfig(Timeouts):
    """Says how the nodes of a job find each other."""

    backend: Backend
    """static: one agent, node rank 0's, serves the store, and nodes have fixed ranks; tcp: the
    agent whose host the endpoint names serves it; etcd: it is etcd's."""
    endpoints: tuple[Address, ...]
    """Addresses of the store; only etcd has more than one."""
    node_rank: int | None = None
    """Rank of this node; None lets the rendezvous choose."""
    is_host: bool | None = None
    """True if this node serves the store; None: if the endpoint is an address of its host."""
    local_addr: str = ""
    """Address at which other nodes reach this one; "" is the one on the way to the endpoint."""
    access: Access = Access()
    secret: str = field(default="", repr=False)
    """Secret that agents prove to know.

    If it is "", the first agent makes one up and the store passes it on.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """Describes a job as requested."""

    target: str
    """Script's path, module's name, or program's path or name that each worker runs."""
    arguments: tuple[str, ...] = ()
    """Words that follow the target on its command line."""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables that every worker gets besides those it inherits; they win over inherited ones."""
    kind: Kind = "script"
    """Kind of target: "script", "module" for this Python, "program" as it is, "path" for runpy."""
    nproc_per_node: int = 1
    min_nodes: int = 1
    """Nodes without which the job does not run."""
    max_nodes: int = 1
    """Nodes that the job takes at most; others wait as spares."""
    rendezvous: RendezvousConfig | None = None
    """Rendezvous of its nodes; None is a job of one node."""
    run_id: str = "none"
    """Names the job; the same on all nodes. A job of one node has one of its own."""
    role: str = "default"
    master_addr: str = "127.0.0.1"
    """Host where rank 0's worker may bind master_port, in a job of one node."""
    master_port: int = 0
    """TCP port for rank 0's worker, 1 to 65535; 0 picks a free one for each round."""
    max_restarts: int = 0
    recover: bool = False
    """True if copies of workers are made, which take the place of those that are killed."""
    restart_backoff: float = 1.0
    retry_same_start: bool = False
    shutdown_timeout: float = 30.0
    signals_to_handle: tuple[signal.Signals, ...] = HANDLED_SIGNALS
    """Signals that stop the job in an orderly way; workers get SIGUSR1 and SIGUSR2 in any case."""
    agent_timeout: float = 60.0
    hang_timeout: float = 0.0
    preload: tuple[str, ...] | Literal["auto"] = ()
    """Modules that are imported before there are workers; auto: those at the script's head."""
    standbys: int | Literal["auto"] = "auto"
    """Number of workers kept ready for a restart; auto: as many as there are workers."""
    pid_namespace: bool = False
    numa_binding: NumaBinding | None = None
    virtual_local_rank: bool = False
    torch_backend: Literal["torsh"] | None = None
    metrics_port: tuple[str, int] | None = None
    """Host ("" is every address) and port of the Prometheus endpoint; None is none."""
    debugpy: Address | None = None
    """Address of the first worker's server; others use the ports after it. None is nowhere."""
    events: str | None = None
    otlp: Collector | None = None
    """Collector to which metrics and events are sent; None is none."""
    progress: ProgressServer | None = None
    """Server that is informed of the job's progress; None is none."""
    straggler_threshold: float = 0.0
    replace_stragglers: bool = False
    notify: str | None = None
    """A command for /bin/sh; None is none."""
    time_limit: float | None = None
    """Counted from when this was made; None is without an end."""
    end_notice: float = 120.0
    signals_reach_workers: bool = False
    """True if whoever signals torshrun has signalled its workers as well."""
    requeues: str = ""
    """The job that Slurm is asked to run again when this one was preempted; "" is none."""
    error_file: str | None = None
    """File in which a launcher above this one reads why it failed (TORCHELASTIC_ERROR_FILE)."""
    scratch_place: str = "/tmp"
    """Parent of the temporary directory.

    It is TMPDIR, or in another job's worker that job's directory.
    """
    output: OutputConfig = OutputConfig()

    @property
    def is_alone(self) -> bool:
        """Return whether this node is the whole job, so that no other has a say in what follows."""
        return self.rendezvous is None
