"""The composition root: makes what a job needs, runs its agent and returns its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
from pathlib import Path

from torsh_runtime.errors import ConfigError
from torshrun.agent.agent import KEEPER_BOUND, Agent, RoundStore, Surroundings
from torshrun.config import LaunchConfig
from torshrun.workers.keeper import Keeper, become_subreaper
from torshrun.workers.logs import LogPump
from torshrun.workers.ports import choose_port
from torshrun.workers.spec import WorkerSpec, allowed_cpus


def launch(config: LaunchConfig) -> int:
    """Run the job on this node; the exit code for this process.

    Raises ConfigError or BackendUnavailable before any worker has been started.
    """
    _open_standard_fds()
    if config.master_port:
        choose_port(config.master_port)
    log_folder = _make_log_folder(config)
    scratch = _new_path(config.scratch_place, "torsh-")
    keeper = Keeper.start(str(scratch))  # first: whatever comes, it removes the directory
    try:
        _make_directory(scratch)
        _raise_descriptor_limit(config.nproc_per_node)
    except ConfigError:
        keeper.close(KEEPER_BOUND)
        raise
    return asyncio.run(_run(config, keeper, str(scratch), log_folder))


async def _run(config: LaunchConfig, keeper: Keeper, scratch: str, log_folder: str) -> int:
    become_subreaper()
    secret = os.urandom(32)
    surroundings = Surroundings(
        spec=WorkerSpec.from_config(config, os.environ, allowed_cpus()),
        keeper=keeper,
        pump=LogPump(),
        scratch=scratch,
        folder=log_folder or scratch,
        secret=secret.hex(),
        serve_store=lambda: _serve_store(secret),
    )
    return await Agent(config, surroundings).run()


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
    needed = 4 * workers + 32
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{workers} workers need {needed} open files, but the limit is {hard} (ulimit -Hn)"
        )
    with contextlib.suppress(ValueError, OSError):  # the limit stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _make_log_folder(config: LaunchConfig) -> str:
    """<log_dir>/<run id>_<random>, or "" if nothing is to be kept."""
    if config.output.log_dir is None:
        return ""
    name = re.sub(r"[^\w.-]", "_", config.run_id)
    folder = _new_path(config.output.log_dir, f"{name}_")
    _make_directory(folder, parents=True)
    return str(folder)


def _new_path(place: str, prefix: str) -> Path:
    return Path(place, prefix + os.urandom(8).hex())


def _make_directory(path: Path, *, parents: bool = False) -> None:
    """Make a directory that only this user may enter. Raises ConfigError if it cannot be made."""
    try:
        path.mkdir(mode=0o700, parents=parents)
    except OSError as error:
        raise ConfigError(f"cannot make a directory in {path.parent}: {error.strerror}") from None
