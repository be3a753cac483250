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
    scratch = f"{_scratch_place()}/torsh-{os.urandom(8).hex()}"
    keeper = Keeper.start(scratch)  # first: whatever comes, it removes the directory
    try:
        Path(scratch).mkdir(mode=0o700)
        _raise_descriptor_limit(config.nproc_per_node)
    except OSError as error:
        keeper.close(KEEPER_BOUND)
        raise ConfigError(f"cannot make the directory {scratch}: {error.strerror}") from None
    except ConfigError:
        keeper.close(KEEPER_BOUND)
        raise
    return asyncio.run(_run(config, keeper, scratch, log_folder))


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


def _scratch_place() -> str:
    """Where temporary directories go; inside another job's worker into that job's own."""
    outer = os.environ.get("TORSH_SCRATCH", "")
    if outer and Path(outer).is_dir():
        return outer
    return str(Path(os.environ.get("TMPDIR") or "/tmp").absolute())


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
    if config.log_dir is None:
        return ""
    name = re.sub(r"[^\w.-]", "_", config.run_id)
    return _make_directory(config.log_dir, f"{name}_")


def _make_directory(place: str, prefix: str) -> str:
    """A new directory that only this user may enter. Raises ConfigError if it cannot be made."""
    path = Path(place, prefix + os.urandom(8).hex())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigError(f"cannot make a directory in {place}: {error.strerror}") from None
    return str(path)
