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
from typing import Literal

from torsh_runtime.contract import WorkerEnv
from torshrun.config.rendezvous import RendezvousConfig

Kind = Literal["script", "module", "program", "path"]
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
    """What holds for ranks that are named in neither mapping."""
    by_local_rank: Mapping[int, Streams] = field(default_factory=lambda: MappingProxyType({}))
    """As torchrun has it: "0:1,1:3"."""
    by_rank: Mapping[int, Streams] = field(default_factory=lambda: MappingProxyType({}))
    """By global rank: "r0:1,r8:3". Wins over the local rank."""

    def streams(self, rank: int, local_rank: int) -> Streams:
        """What holds for this worker. Once a rank is named, others have nothing, as in torchrun."""
        if rank in self.by_rank:
            return self.by_rank[rank]
        return self.by_local_rank.get(local_rank, self.everyone)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """What becomes of the workers' output."""

    log_dir: str | None = None
    redirects: StreamRule = StreamRule()
    tee: StreamRule = StreamRule()
    """With a log_dir and neither rule: all streams."""
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
        """Which of this worker's streams the console shows."""
        for chosen, rank in (
            (self.ranks_filter, worker.rank),
            (self.local_ranks_filter, worker.local_rank),
        ):
            if chosen is not None and rank not in chosen:
                return Streams.NONE
        redirected, teed = self._ruled(worker)
        return ~redirected | teed

    def kept(self, worker: WorkerEnv) -> Streams:
        """Which of this worker's streams are kept in stdout.log and stderr.log."""
        if self.log_dir is not None and self.redirects == self.tee == StreamRule():
            return Streams.BOTH
        redirected, teed = self._ruled(worker)
        return redirected | teed

    def needs_folder(self) -> bool:
        """Whether something may have to be kept, so that the job needs a log directory."""
        filtered = self.duplicate_stdout_filters or self.duplicate_stderr_filters
        ruled = (self.redirects, self.tee) != (StreamRule(), StreamRule())
        return self.log_dir is not None or ruled or bool(filtered)

    def _ruled(self, worker: WorkerEnv) -> tuple[Streams, Streams]:
        rules, ranks = (self.redirects, self.tee), (worker.rank, worker.local_rank)
        redirected, teed = (rule.streams(*ranks) for rule in rules)
        return redirected, teed


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """One job, as asked for."""

    target: str
    """What each worker runs: a script's path, a module's name, or a program's path or name."""
    arguments: tuple[str, ...] = ()
    """What follows the target on its command line."""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables that every worker gets besides those it inherits; they win over inherited ones."""
    kind: Kind = "script"
    """How target is to be run: "script" and "module" by this Python, "program" as it is, "path" by
    runpy.run_path."""
    nproc_per_node: int = 1
    min_nodes: int = 1
    """Nodes without which the job does not run."""
    max_nodes: int = 1
    """Nodes that the job takes at most; others wait as spares."""
    rendezvous: RendezvousConfig | None = None
    """How its nodes find each other; None is a job of one node."""
    run_id: str = "none"
    """Names the job; the same on all nodes. A job of one node has one of its own."""
    role: str = "default"
    master_addr: str = "127.0.0.1"
    """Host where rank 0's worker may bind master_port, in a job of one node."""
    master_port: int = 0
    """TCP port for rank 0's worker, 1 to 65535; 0 picks a free one for each round."""
    max_restarts: int = 0
    restart_backoff: float = 1.0
    retry_same_start: bool = False
    shutdown_timeout: float = 30.0
    signals_to_handle: tuple[signal.Signals, ...] = HANDLED_SIGNALS
    """Signals that stop the job in an orderly way. SIGUSR1 and SIGUSR2 are passed on to workers
    whether or not they are named here."""
    agent_timeout: float = 60.0
    hang_timeout: float = 0.0
    pid_namespace: bool = False
    numa_binding: NumaBinding | None = None
    virtual_local_rank: bool = False
    metrics_port: tuple[str, int] | None = None
    """Host ("" is every address) and port of the Prometheus endpoint; None is none."""
    events: str | None = None
    error_file: str | None = None
    """Where a launcher above this one reads why it failed (TORCHELASTIC_ERROR_FILE); None is
    nowhere."""
    scratch_place: str = "/tmp"
    """Directory for the job's temporary directory: TMPDIR, or inside another job's worker that
    job's own, so that it goes with it."""
    output: OutputConfig = OutputConfig()
