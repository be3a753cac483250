"""Prepares the environment of a corpus case: file systems, cgroups, hosts and stores of its own.

Mounts are in the job's own namespace, hosts are network namespaces without names, and cgroups are
removed, so nothing remains after the job's processes have ended.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from support.corpus import Case
from support.ports import free_port

from benchmarks.peers import UnavailableError
from torshrun.cgroups import find

_DISK_BYTES = 8 << 20
_SHM_BYTES = 16 << 20
_MEMORY_BYTES = 512 << 20
_PATIENCE = 10.0
_CONF = {"join_timeout": "20", "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}
"""Options that both launchers have; for torshrun the last two mean a ttl of 3 s."""


@dataclass
class Stage:
    """Describes the environment in which a job's agents start."""

    folder: Path
    """The job's own folder, whose subfolder "work" is its working directory."""
    endpoint: str
    """The address at which nodes rendezvous."""
    backend: str = "static"
    variables: dict[str, str] = field(default_factory=dict)
    """Additional environment variables of the workers."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell that run before an agent."""
    mounts: bool = False
    """True if the setup mounts something."""
    prefixes: dict[int, list[str]] = field(default_factory=dict)
    """Words to put before the command of each node's agent."""

    def command(self, node: int, agent: list[str]) -> list[str]:
        """Return the agent's command for this node. Workers find the agent's pid in
        CORPUS_AGENT_PID.
        """
        lines = [*self.setup, "export CORPUS_AGENT_PID=$$", 'exec "$@"']
        apart = ["unshare", "--mount"] if self.mounts else []
        shell = ["sh", "-ec", "\n".join(lines), "sh"]
        return [*apart, *shell, *self.prefixes.get(node, []), *agent]

    def meeting(self, node: int, nnodes: int) -> list[str]:
        """Return the options by which nodes rendezvous."""
        if nnodes == 1:
            return []
        where = [f"--nnodes={nnodes}", "--rdzv-id=corpus"]
        if self.backend == "static":
            host, _, port = self.endpoint.rpartition(":")
            where += [f"--node-rank={node}", f"--master-addr={host}", f"--master-port={port}"]
        else:
            where += [f"--rdzv-backend={self.backend}", f"--rdzv-endpoint={self.endpoint}"]
        conf = ",".join(f"{key}={value}" for key, value in _CONF.items())
        return [*where, f"--rdzv-conf={conf}"]


@contextlib.contextmanager
def staged(case: Case, folder: Path) -> Iterator[Stage]:
    """Prepare the stage that the case needs.

    Raises UnavailableError if this machine lacks something for it.
    """
    stage = Stage(folder, f"127.0.0.1:{free_port()}")
    (folder / "work").mkdir()
    (folder / "tmp").mkdir()
    with ExitStack() as stack:
        for need in sorted(case.needs):
            _PROVIDERS[need](case, stage, stack)
        yield stage


Provider = Callable[[Case, Stage, ExitStack], None]


def _root(case: Case, stage: Stage, stack: ExitStack) -> None:
    if os.geteuid() != 0:
        raise UnavailableError("it needs root")


def _torch(case: Case, stage: Stage, stack: ExitStack) -> None:
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("it needs torch")


def _disk(case: Case, stage: Stage, stack: ExitStack) -> None:
    _root(case, stage, stack)
    disk = stage.folder / "disk"
    disk.mkdir()
    stage.variables["CORPUS_DISK"] = str(disk)
    _mount(stage, disk, _DISK_BYTES)


def _shm(case: Case, stage: Stage, stack: ExitStack) -> None:
    _root(case, stage, stack)
    _mount(stage, Path("/dev/shm"), _SHM_BYTES)


def _mount(stage: Stage, place: Path, size: int) -> None:
    stage.mounts = True
    stage.setup.append(f"mount -t tmpfs -o size={size},mode=1777 none {shlex.quote(str(place))}")


def _cgroup(case: Case, stage: Stage, stack: ExitStack) -> None:
    group = stack.enter_context(_made_cgroup("memory"))
    version1 = group / "memory.limit_in_bytes"
    (version1 if version1.exists() else group / "memory.max").write_text(str(_MEMORY_BYTES))
    stage.setup.append(f"echo $$ > {shlex.quote(str(group))}/cgroup.procs")


def _freezer(case: Case, stage: Stage, stack: ExitStack) -> None:
    """Provide a freezer of version 1, in which SIGKILL has no effect, as in state D."""
    group = stack.enter_context(_made_cgroup("freezer"))
    if not (group / "freezer.state").exists():
        raise UnavailableError("it needs the freezer of cgroups, version 1")
    stack.callback((group / "freezer.state").write_text, "THAWED")
    stage.variables["CORPUS_FREEZER"] = str(group)


@contextlib.contextmanager
def _made_cgroup(controller: str) -> Iterator[Path]:
    """Create a cgroup below this process's own, and remove it once its processes have ended."""
    own = next((path[0] for path in find(controller, Path("/"))), None)
    if own is None or not os.access(own.folder / "cgroup.procs", os.W_OK):
        raise UnavailableError(f"it needs a cgroup that it may write to: {controller}")
    group = own.folder / f"torsh-corpus-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        raise UnavailableError(f"it needs a cgroup: {error}") from None
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _netns(case: Case, stage: Stage, stack: ExitStack) -> None:
    """Provide a host for each node, whose interface is called "plug"."""
    from support.hosts import hindrance, plugged

    if hindrance():
        raise UnavailableError(hindrance())
    hosts = stack.enter_context(plugged(case.nnodes))
    stage.endpoint = f"{hosts[0].ipv4}:{free_port()}"
    for node, host in enumerate(hosts):
        stage.prefixes[node] = host.command


def _etcd(case: Case, stage: Stage, stack: ExitStack) -> None:
    from support.etcd_servers import EtcdCluster, NotHereError, binary

    folder = stage.folder / "etcd"
    folder.mkdir()
    try:
        cluster = stack.enter_context(EtcdCluster(binary("3.5"), folder))
    except NotHereError as error:
        raise UnavailableError(str(error)) from None
    stage.backend, stage.endpoint = "etcd", cluster.endpoints[0]
    stage.variables["CORPUS_ETCD_PID"] = str(cluster.members[0].pid)


def _faketime(case: Case, stage: Stage, stack: ExitStack) -> None:
    """Set the last node's clock back by an hour."""
    if not shutil.which("faketime"):
        raise UnavailableError("it needs faketime")
    last = case.nnodes - 1
    stage.prefixes[last] = [*stage.prefixes.get(last, []), "faketime", "-f", "-1h"]


_PROVIDERS: Mapping[str, Provider] = {
    "root": _root,
    "torch": _torch,
    "disk": _disk,
    "shm": _shm,
    "cgroup": _cgroup,
    "freezer": _freezer,
    "netns": _netns,
    "etcd": _etcd,
    "faketime": _faketime,
}
