"""Defines a worker: its command, its whole environment and its place in the job."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torsh_runtime.contract import COPIES, WorkerEnv
from torsh_runtime.errors import ConfigError
from torshrun.config.job import Address, LaunchConfig
from torshrun.config.options import is_for_torshrun
from torshrun.debugger import WITHOUT_FROZEN_MODULES
from torshrun.procfs import ROOT
from torshrun.topology.cpus import allocated_cpus, cpu_quota

CpuSet = frozenset[int]
_HOOK = str(Path(__file__).parent / "startup")
"""The directory whose sitecustomize.py the workers' Python runs before their script."""
COPY_SECONDS = "1"
"""The least seconds between two copies of a worker, as each costs page faults."""
SLURM_PLACE: Mapping[str, str] = {
    "SLURM_PROCID": "rank",
    "SLURM_LOCALID": "local_rank",
    "SLURM_NODEID": "node_rank",
    "SLURM_NTASKS": "world_size",
    "SLURM_NPROCS": "world_size",
}
"""Variables of Slurm's that tell a task its place, and the fields of a worker's."""
_LABEL = r"(?:\w|\w[\w-]{0,61}\w)"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\.?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Holds what the job's workers are made from, which is the same in every round."""

    argv: tuple[str, ...]
    """The command; argv[0] is the program's path, ${local_rank} is each worker's own."""
    environ: Mapping[str, str]
    """Environment that all workers inherit, before their own places are added."""
    own_environ: tuple[Mapping[str, str], ...]
    """Further variables of each local rank; they take precedence over its place."""
    cpus: tuple[CpuSet, ...]
    """The processors of each local rank; an empty set is no binding."""
    shares_session: bool = False
    """True if all workers are in the keeper's session, because they are more than the processors.

    Linux gives each session a share of the processors (sched(7), autogroups), so that a worker
    which yields hands its turn to another one of its own session only.
    """
    timer_file: str = ""
    """The pipe into which workers write torch's file timers; "" is none."""
    debugpy: Address | None = None
    """Address at which the first worker serves it. Others use the ports after it.

    None is nowhere.
    """

    def command(self, local_rank: int) -> tuple[str, ...]:
        """Return the argv of a worker."""
        words = (word.replace("${local_rank}", str(local_rank)) for word in self.argv)
        if self.debugpy is None:
            return tuple(words)
        python, unbuffered, *script = words
        where = f"{self.debugpy.host}:{self.debugpy.port + local_rank}"
        server = (WITHOUT_FROZEN_MODULES, "-m", "debugpy", "--listen", where)
        return (python, unbuffered, *server, *script)

    @classmethod
    def from_config(
        cls, config: LaunchConfig, environ: Mapping[str, str], allowed: CpuSet, root: Path = ROOT
    ) -> WorkerSpec:
        """Return the spec of the workers that `config` describes.

        `environ` is the agent's own, `allowed` are the processors that it may use, and `root` holds
        /sys, /proc and /dev. Raise ConfigError if this machine cannot place the workers.
        """
        inherited = _inherited(config, environ)
        encoded_environment(inherited)
        cpus = _bind(config, inherited, allowed, root)
        return cls(
            argv=_command(config, inherited),
            debugpy=config.debugpy,
            environ=inherited,
            own_environ=_own_environ(config, inherited, [own or allowed for own in cpus], root),
            cpus=cpus,
            shares_session=config.nproc_per_node > len(allowed),
        )


def _inherited(config: LaunchConfig, environ: Mapping[str, str]) -> dict[str, str]:
    given = {
        "PYTHONFAULTHANDLER": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **{name: environ[name] for name in environ if name and not _is_for_others(name)},
        **({"TORSH_TORCH_BACKEND": config.torch_backend} if config.torch_backend else {}),
        **({COPIES: COPY_SECONDS} if config.recover else {}),
        "PYTHONUNBUFFERED": "1",  # a killed worker's last words must not be in a buffer
        **config.environment,
    }
    return {**given, "PYTHONPATH": python_path(given)}


def _is_for_others(name: str) -> bool:
    """Return whether a variable is for another torshrun, or for the workers of one."""
    return is_for_torshrun(name) or name == COPIES


def python_path(environ: Mapping[str, str]) -> str:
    """Return PYTHONPATH for a worker that inherits `environ`.

    Startup's hook is first, and only once.
    """
    entries = environ["PYTHONPATH"].split(os.pathsep) if environ.get("PYTHONPATH") else []
    return os.pathsep.join([_HOOK, *(entry for entry in entries if entry != _HOOK)])


def _command(config: LaunchConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    if config.kind == "program":
        return (config.target, *config.arguments)
    python = (_python(environ), "-u")
    if config.kind == "module":
        return (*python, "-m", config.target, *config.arguments)
    if config.kind == "path":
        runner = str(Path(__file__).with_name("run_path.py"))
        return (*python, runner, config.target, *config.arguments)
    # What begins with a dash Python would take for an option of its own.
    script = f"./{config.target}" if config.target.startswith("-") else config.target
    return (*python, script, *config.arguments)


def _python(environ: Mapping[str, str]) -> str:
    """Return the workers' interpreter: this one, or the one that PYTHON_EXEC names."""
    name = environ.get("PYTHON_EXEC")
    if not name:
        return sys.executable
    import shutil

    path = shutil.which(name, path=environ.get("PATH", os.defpath))
    if path is None:
        raise ConfigError(
            f"PYTHON_EXEC={name} is no program: give an interpreter's path, or unset it"
        )
    return path


def _bind(
    config: LaunchConfig, environ: Mapping[str, str], allowed: CpuSet, root: Path
) -> tuple[CpuSet, ...]:
    if config.numa_binding is None:
        return (frozenset(),) * config.nproc_per_node
    from torshrun.topology import gpus, numa

    nodes = [gpus.pci_numa_node(gpu, root) for gpu in gpus.visible(environ, root)]
    topology = numa.read_topology(allowed, root)
    return numa.bind(config.numa_binding, config.nproc_per_node, topology, nodes)


def _own_environ(
    config: LaunchConfig, environ: Mapping[str, str], usable: Sequence[CpuSet], root: Path
) -> tuple[Mapping[str, str], ...]:
    """Return variables of each local rank; `usable` are the processors that it may run on."""
    quota = min(cpu_quota(root), allocated_cpus(environ))
    own = [{"OMP_NUM_THREADS": str(number)} for number in threads(usable, quota)]
    if config.recover:  # a copy of a process has one thread
        own = [{"OMP_NUM_THREADS": "1"} for _ in usable]
    if "OMP_NUM_THREADS" in environ:
        own = [{} for _ in usable]
    if not config.virtual_local_rank:
        return tuple(own)
    from torshrun.topology import gpus

    for one, gpu in zip(own, gpus.share_out(environ, config.nproc_per_node, root), strict=True):
        one |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": gpu}
        if "HIP_VISIBLE_DEVICES" in environ:  # which HIP reads before CUDA's
            one["HIP_VISIBLE_DEVICES"] = gpu
    return tuple(own)


def threads(usable: Sequence[CpuSet], quota: float) -> tuple[int, ...]:
    """Return how many threads keep a worker to its processors, and all to `quota`; at least 1."""
    sharing = Counter(usable)
    share = quota / len(usable)
    return tuple(max(1, int(min(len(own) // sharing[own], share))) for own in usable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Describes a worker completely, as it is to be started."""

    worker: WorkerEnv
    argv: tuple[str, ...]
    """Command line; argv[0] is the program's path."""
    environ: Mapping[str, str]
    cpus: CpuSet
    """The processors that it is bound to; empty is no binding."""
    folder: str
    """Directory of this worker for its output; only the agent writes there."""
    shares_session: bool = False
    """Like WorkerSpec.shares_session."""


def assign(
    spec: WorkerSpec, first: WorkerEnv, folder: str, mark: str = ""
) -> tuple[Assignment, ...]:
    """Return the assignments of this node's workers, in the order of their local ranks.

    `first` is the place of the first worker without its error file, and `folder` the attempt's
    directory if output is kept. `mark` is in the names of their files for the agent, which differ
    from those of other workers of that round with the same ranks. Raise ConfigError for values that
    no worker should get: some come from other nodes.
    """
    _check(first)
    ranks = range(first.local_world_size)
    return tuple(_assignment(spec, first, folder, rank, mark) for rank in ranks)


def _check(place: WorkerEnv) -> None:
    if not _is_host(place.master_addr):
        raise ConfigError(
            f"MASTER_ADDR={place.master_addr!r} is neither a host's name nor an address"
        )
    if not 1 <= place.master_port <= 65535 or not 0 <= place.jax_coordinator_port <= 65535:
        ports = f"{place.master_port} and {place.jax_coordinator_port}"
        raise ConfigError(f"the ports {ports} for MASTER_PORT and JAX are not both TCP ports")


def _is_host(text: str) -> bool:
    """Return whether it is a name that DNS or /etc/hosts can have, or an IP address."""
    if _HOST_NAME.fullmatch(text):
        return True
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _assignment(
    spec: WorkerSpec, first: WorkerEnv, folder: str, local_rank: int, mark: str
) -> Assignment:
    place = replace(
        first,
        rank=first.rank + local_rank,
        role_rank=first.role_rank + local_rank,
        local_rank=local_rank,
        error_file=f"{first.scratch}/error_{first.round}_{local_rank}{mark}.json",
        stack_file=f"{first.scratch}/stack_{first.round}_{local_rank}{mark}",
    )
    own = {**place.to_environ(), **_slurms(place, spec.environ), **spec.own_environ[local_rank]}
    encoded_environment(own)
    return Assignment(
        worker=place,
        argv=spec.command(local_rank),
        environ={**spec.environ, **own},
        cpus=spec.cpus[local_rank],
        folder=f"{folder}/{local_rank}",
        shares_session=spec.shares_session,
    )


def _slurms(place: WorkerEnv, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that srun would have set for this worker.

    Programs that ask Slurm for their place would otherwise find that of torshrun's own task.
    """
    return {name: str(getattr(place, of)) for name, of in SLURM_PLACE.items() if name in environ}


def encoded(what: str, text: str) -> bytes:
    """Return the bytes of `text`, ended by NUL.

    Raise ConfigError if there are none. It names `what` it is, never the text, which may be secret.
    """
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        raise ConfigError(f"{what} has half a surrogate pair in it, which has no bytes") from None
    if b"\0" in data:
        raise ConfigError(f"{what} has a NUL character in it: no program can have that")
    return data + b"\0"


def encoded_environment(environ: Mapping[str, str]) -> list[bytes]:
    """Return NAME=value for each variable, as encoded() does. Raise ConfigError as that does."""
    for name in environ:
        if not name or "=" in name:
            raise ConfigError(f"no environment variable can have the name {name!r}")
    return [
        encoded(f"the environment variable {name!r}", f"{name}={value}")
        for name, value in environ.items()
    ]
