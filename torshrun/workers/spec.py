"""What one worker is to be: its command, its whole environment and its place in the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from torsh_runtime.contract import WorkerEnv
from torshrun.config import LaunchConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What all workers of the job have in common."""

    argv: tuple[str, ...]
    """The command; argv[0] is the program's path."""
    environ: Mapping[str, str]
    """What a worker inherits, before its own place is added."""

    @classmethod
    def from_config(
        cls, config: LaunchConfig, environ: Mapping[str, str], allowed_cpus: int
    ) -> WorkerSpec:
        """`environ` is the agent's own; OMP_NUM_THREADS in it is kept."""
        threads = str(max(1, allowed_cpus // config.nproc_per_node))
        return cls(
            argv=_command(config),
            environ={
                "OMP_NUM_THREADS": threads,
                **environ,
                "PYTHONUNBUFFERED": "1",  # a killed worker's last words must not be in a buffer
            },
        )


def _command(config: LaunchConfig) -> tuple[str, ...]:
    if config.kind == "program":
        return (config.target, *config.arguments)
    if config.kind == "module":
        return (sys.executable, "-u", "-m", config.target, *config.arguments)
    # What begins with a dash Python would take for an option of its own.
    script = f"./{config.target}" if config.target.startswith("-") else config.target
    return (sys.executable, "-u", script, *config.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """What holds for all workers that start together."""

    number: int
    """The round's number."""
    restart_count: int
    """How often workers have been restarted after a failure."""
    master_port: int
    """A port that is free on this node now."""
    store_endpoint: str
    """Where the round's store is served."""
    secret: str
    """The job's secret in hexadecimal."""
    scratch: str
    """The job's temporary directory."""
    folder: str
    """The attempt's directory; each worker has <folder>/<local rank>/ in it."""
    keep_output: bool
    """Whether stdout.log and stderr.log are to be kept there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One worker, complete at birth."""

    worker: WorkerEnv
    """Its place in the job."""
    argv: tuple[str, ...]
    """Its command; argv[0] is the program's path."""
    environ: Mapping[str, str]
    """Its whole environment."""
    folder: str
    """Its own directory, which is to be made before it starts."""
    keep_output: bool
    """Whether its output is kept in stdout.log and stderr.log there."""


def assign(config: LaunchConfig, spec: WorkerSpec, facts: RoundFacts) -> tuple[Assignment, ...]:
    """The assignments of this node's workers, in the order of their local ranks."""
    return tuple(_assignment(config, spec, facts, rank) for rank in range(config.nproc_per_node))


def _assignment(
    config: LaunchConfig, spec: WorkerSpec, facts: RoundFacts, local_rank: int
) -> Assignment:
    folder = f"{facts.folder}/{local_rank}"
    place = WorkerEnv(
        rank=local_rank,
        world_size=config.nproc_per_node,
        local_rank=local_rank,
        local_world_size=config.nproc_per_node,
        role_name=config.role,
        master_addr=config.master_addr,
        master_port=facts.master_port,
        restart_count=facts.restart_count,
        max_restarts=config.max_restarts,
        run_id=config.run_id,
        round=facts.number,
        store_endpoint=facts.store_endpoint,
        secret=facts.secret,
        error_file=f"{folder}/error.json",
        scratch=facts.scratch,
    )
    return Assignment(
        worker=place,
        argv=spec.argv,
        environ={**spec.environ, **place.to_environ()},
        folder=folder,
        keep_output=facts.keep_output,
    )


def allowed_cpus() -> int:
    """Number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))
