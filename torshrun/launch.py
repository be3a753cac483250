"""The composition root: makes what a job needs, runs its agent and returns its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import resource
import traceback
from pathlib import Path

from torsh_runtime.errors import ConfigError
from torshrun import exit_codes
from torshrun.agent.agent import KEEPER_BOUND, Agent, Surroundings
from torshrun.agent.outside import Outside
from torshrun.agent.round import RoundStore
from torshrun.config import LaunchConfig
from torshrun.topology import allowed_cpus
from torshrun.workers.keeper import Keeper, become_subreaper
from torshrun.workers.logs import LogPump, check_template, is_coloured, needs_folder
from torshrun.workers.ports import choose_port
from torshrun.workers.spec import WorkerSpec

LAST_WORDS = 1.0
"""Seconds that the account of a mistake of our own may take to get out."""


def launch(config: LaunchConfig) -> int:
    """Run the job on this node; the exit code for this process.

    Raises ConfigError or BackendUnavailable before any worker has been started.
    """
    gc.freeze()
    gc.enable()
    _open_standard_fds()
    if config.output.prefix_template is not None:
        _check_prefix(config.output.prefix_template)
    if config.master_port:
        choose_port(config.master_port)
    spec = WorkerSpec.from_config(config, os.environ, allowed_cpus())
    with contextlib.ExitStack() as undo:
        surroundings = _make_surroundings(config, spec, undo)
        undo.pop_all()
    return asyncio.run(_run(config, surroundings))


def _check_prefix(template: str) -> None:
    try:
        check_template(template)
    except ConfigError as error:
        raise ConfigError(f"--log-line-prefix-template: {error}") from None


def _make_surroundings(
    config: LaunchConfig, spec: WorkerSpec, undo: contextlib.ExitStack
) -> Surroundings:
    """Make all that outlives a call. `undo` takes it back."""
    scratch = _new_path(config.scratch_place, "torsh-")
    # First: whatever comes, the keeper removes the directory.
    keeper = Keeper.start(str(scratch), namespace=config.pid_namespace)
    undo.callback(keeper.close, KEEPER_BOUND)
    _make_directory(scratch)
    _raise_descriptor_limit(config.nproc_per_node)
    pump = LogPump(config.output)
    undo.callback(pump.close)
    outside = Outside(config, pump, is_coloured(config.output, True, os.environ))
    undo.callback(outside.close)
    folder = _make_log_folder(config)
    secret = os.urandom(32)
    return Surroundings(
        spec=spec,
        keeper=keeper,
        pump=pump,
        outside=outside,
        scratch=str(scratch),
        folder=folder or str(scratch),
        keeps_output=bool(folder),
        secret=secret.hex(),
        serve_store=lambda: _serve_store(secret),
    )


async def _run(config: LaunchConfig, surroundings: Surroundings) -> int:
    become_subreaper()
    try:
        return await Agent(config, surroundings).run()
    except Exception:  # the keeper, let go when this process ends, ends what runs
        pump = surroundings.pump
        pump.say(f"torshrun: internal error; please report this:\n{traceback.format_exc()}")
        pump.close()
        pump.is_closed(LAST_WORDS)
        return exit_codes.LOST


class _ServedStore:
    """A store in this process and the server that offers it to the workers."""

    def __init__(self, secret: bytes) -> None:
        from torsh_runtime.store.memory import MemoryStore
        from torsh_runtime.store.server import StoreServer

        self._store = MemoryStore()
        self._server = StoreServer(self._store, secret)
        self.endpoint = ""

    async def start(self) -> None:
        self.endpoint = await self._server.start(f"unix:@torsh-{os.urandom(8).hex()}")

    async def close(self) -> None:
        await self._server.close()
        await self._store.close()


async def _serve_store(secret: bytes) -> RoundStore:
    served = _ServedStore(secret)
    await served.start()
    return served


def _open_standard_fds() -> None:
    """Keep 0, 1 and 2 from becoming something else, should this process lack them."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _raise_descriptor_limit(workers: int) -> None:
    """Each worker costs the agent up to four descriptors. The keeper, and with it the workers,
    started with the limit as it was. Raises ConfigError when the limit cannot be high enough.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4 * workers + 48
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{workers} workers need {needed} open files, but the limit is {hard} (ulimit -Hn)"
        )
    with contextlib.suppress(ValueError, OSError):  # the limit stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _make_log_folder(config: LaunchConfig) -> str:
    """<log_dir>/<run id>_<random>, or "" if nothing is to be kept."""
    output = config.output
    if not needs_folder(output):
        return ""
    name = re.sub(r"[^\w.-]", "_", config.run_id)
    place = output.log_dir or config.scratch_place
    folder = _new_path(place, f"{name}_" if output.log_dir else f"torshrun-logs-{name}_")
    _make_directory(folder, parents=True)
    return str(folder)


def _new_path(place: str, prefix: str) -> Path:
    return Path(place, prefix + os.urandom(8).hex())


def _make_directory(path: Path, *, parents: bool = False) -> None:
    """Make a directory that only this user may enter. Raises ConfigError if it cannot be made."""
    try:
        path.mkdir(mode=0o700, parents=parents)
    except OSError as error:
        raise ConfigError(
            f"cannot make a directory in {path.parent}: {error.strerror}; --log-dir and TMPDIR say "
            f"where torshrun makes some"
        ) from None
