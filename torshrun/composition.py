"""The composition root: makes what a job needs, runs its agent and returns its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import resource
import traceback
from dataclasses import fields, replace
from pathlib import Path

from torsh_runtime import transitions
from torsh_runtime.contract import COMMIT_MEMORY
from torsh_runtime.errors import ConfigError
from torshrun import exit_codes
from torshrun.agent.agent import KEEPER_BOUND, Agent
from torshrun.agent.round import ServeStore
from torshrun.config.job import LaunchConfig, Timeouts
from torshrun.rendezvous.alone import Alone
from torshrun.rendezvous.base import Rendezvous
from torshrun.rendezvous.ports import choose_port
from torshrun.rendezvous.served import serve_fresh
from torshrun.safe_files import Folder
from torshrun.topology.cpus import allowed_cpus
from torshrun.workers.commit_memory import CommitMemory
from torshrun.workers.keeper import Keeper
from torshrun.workers.logs.pump import LogPump
from torshrun.workers.processes import become_subreaper
from torshrun.workers.spec import WorkerSpec

OUTAGE = 120.0
"""Seconds that a job continues without etcd while its nodes hear each other."""
LAST_WORDS = 1.0
"""Seconds that the account of a mistake of our own may take to get out."""


def launch(config: LaunchConfig) -> int:
    """Run the job here; its exit code. ConfigError, BackendUnavailable: before any worker."""
    gc.freeze()
    gc.enable()
    if config.master_port:
        choose_port(config.master_port)
    spec = WorkerSpec.from_config(config, os.environ, allowed_cpus())
    if config.debugpy:
        from torshrun.workers.debug_servers import check

        check(spec, config.debugpy)
    return asyncio.run(_run(config, spec))


def _make_agent(config: LaunchConfig, spec: WorkerSpec, undo: contextlib.ExitStack) -> Agent:
    """Make all that outlives a call. `undo` takes it back."""
    scratch = _new_path(config.scratch_place, "torsh-")
    # First: whatever comes, the keeper removes the directory.
    keeper = Keeper.start(scratch, namespace=config.pid_namespace)
    undo.callback(keeper.close, KEEPER_BOUND)
    _make_folder(scratch).close()
    if spec.environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1":
        from torshrun.health.timers import TIMER_FILE, make_pipe

        path = make_pipe(spec.environ, scratch)
        spec = replace(spec, timer_file=path, environ={**spec.environ, TIMER_FILE: path})
    commit_memory = CommitMemory(config.nproc_per_node, config.pid_namespace)
    undo.callback(commit_memory.close)
    spec = replace(spec, environ={**spec.environ, COMMIT_MEMORY: commit_memory.told()})
    _raise_descriptor_limit(config)
    folder = _make_log_folder(config)
    pump = LogPump(config.output, folder)
    undo.callback(pump.close)
    transitions.begin(pump.say)
    rendezvous, serve_store = _make_rendezvous(config)
    return Agent(
        config=config,
        spec=spec,
        keeper=keeper,
        pump=pump,
        scratch=scratch,
        folder=folder,
        rendezvous=rendezvous,
        serve_store=serve_store,
        commit_memory=commit_memory,
    )


def _make_rendezvous(config: LaunchConfig) -> tuple[Rendezvous, ServeStore]:
    how = config.rendezvous
    if how is None:
        secret = os.urandom(32)
        return Alone(config), lambda place: serve_fresh(secret)
    from torshrun.rendezvous.settings import Settings
    from torshrun.rendezvous.together import Together

    settings = Settings(
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        max_restarts=config.max_restarts,
        restart_backoff=config.restart_backoff,
        **{each.name: getattr(how, each.name) for each in fields(Timeouts)},
        fixed_ranks=how.backend == "static",
        outage_timeout=OUTAGE if how.backend == "etcd" else how.ttl,
    )
    together = Together(how, settings, config.nproc_per_node, config.role)
    return together, together.serve_store


async def _run(config: LaunchConfig, spec: WorkerSpec) -> int:
    with contextlib.ExitStack() as undo:
        agent = _make_agent(config, spec, undo)
        undo.pop_all()
    become_subreaper()
    try:
        return await agent.run()
    except Exception:  # the keeper, let go when this process ends, ends what runs
        pump = agent.pump
        pump.say(f"torshrun: internal error; please report this:\n{traceback.format_exc()}")
        pump.close()
        pump.is_closed(LAST_WORDS)
        return exit_codes.LOST


def _raise_descriptor_limit(config: LaunchConfig) -> None:
    """Raise the limit on open files. Raise ConfigError if it cannot be high enough.

    A worker costs up to four descriptors, with standbys eight, and each other node four.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    workers = config.nproc_per_node
    needed = (8 if config.preload else 4) * workers + 4 * (config.max_nodes - 1) + 48
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{workers} workers need {needed} open files, but the limit is {hard} (ulimit -Hn)"
        )
    with contextlib.suppress(ValueError, OSError):  # the limit stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _make_log_folder(config: LaunchConfig) -> Folder | None:
    """Make the folder <log_dir>/<run id>_<random>; return None if no output is to be kept."""
    output = config.output
    if not output.needs_folder():
        return None
    name = re.sub(r"[^\w.-]", "_", config.run_id)
    place = output.log_dir or config.scratch_place
    return _make_folder(_new_path(place, f"{'' if output.log_dir else 'torshrun-logs-'}{name}_"))


def _new_path(place: str, prefix: str) -> str:
    return str(Path(place, prefix + os.urandom(8).hex()))


def _make_folder(path: str) -> Folder:
    """Make the folder. Raise ConfigError if that fails."""
    try:
        return Folder.make(path)
    except OSError as error:
        raise ConfigError(
            f"cannot make a directory in {Path(path).parent}: {error.strerror}; --log-dir and "
            f"TMPDIR say where torshrun makes some"
        ) from None
