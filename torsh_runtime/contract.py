"""Defines the environment through which the agent informs each worker, in one place for both sides.

VARIABLES maps each variable to the field of WorkerEnv that it carries. JAX_COORDINATOR_ADDRESS is
master_addr:jax_coordinator_port, and the JAX variables are set only if there is such a port.
TORCHELASTIC_USE_AGENT_STORE is always False, since the agent serves no TCPStore of torch's: rank
0's worker does. In addition a worker has its agent's environment, with OMP_NUM_THREADS,
PYTHONUNBUFFERED and others as torshrun/workers/spec.py adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torsh_runtime.errors import ConfigError

CHECKPOINT_KEY = "torsh/checkpoint"
"""Key of the round's store under which rank 0's worker writes for how many seconds from then on
nodes may be added, such as "2.0". Once the key exists, they may not be added at other times."""

COMMIT_MEMORY = "TORSH_COMMIT_MEMORY"
"""Variable that names memory of the agent, which outlives the workers: "/proc/123/fd/7:5:77" is the
file behind that path, if it is inode 77 of device 5. Each worker owns the 2**42 bytes from its
local rank times 2**42 on."""

REPLACEMENT = "TORSH_REPLACEMENT"
"""Variable that is 1 in a worker that takes the place of a lost one while the others continue, and
JOINED once it has met them."""
JOINED = "joined"

COPIES = "TORSH_COPIES"
"""Variable that is set in workers of which copies are made (torshrun --recover): the least seconds
between two of them, if these have little memory."""

RECOVERY = "torsh/recovery/"
"""Prefix, in the round's store, of what a job that recovers without restarts writes there. Each
agent and its own workers have these keys for themselves:
notice by the agent, the seconds within which it says that a round is over whose ranks lose one
another;
joined/<start>/<local rank> and left/<start>/<local rank> by workers, where <start> is the round in
which that process began, and FIXED the value of the one if it can only go on among as many workers,
LEFT_EARLY of the other if it did not take all steps; over/<round> by the agent, once the workers
are to leave the round, with AT_COMMIT if they are to do so at their next commit, or with the rank
of one that has ended well and is not replaced; now/<round> by the agent, once they are not to wait
for that commit any more;
parked/<round>/<local rank> by each survivor, with the seconds of its longest step;
refused/<start>/<local rank> by a worker that is about to end as join() refuses its program;
corrupted/<start>/<local rank> by one of the ranks whose state is corrupt, with the facts;
unprotected/<start>/<local rank> by a worker of which no copies are made any more, with the reason;
copy/<pid> by the agent, once it has made a worker of the copy of a lost one, with the round in
which that begins;
round/<round> by the agent, once that has begun: the variables of PLACE of each of its workers, as
JSON, in the order of local ranks."""
FIXED = b"fixed"
LEFT_EARLY = b"early"
AT_COMMIT = b"at commit"
EXITED = "torsh/exited/"
"""Prefix, in the round's store, of the rank that has ended well before the last step of a job that
recovers without restarts, by round. Its agent writes it, and those of other nodes tell their own
workers."""

PARKED = "torsh/parked/"
"""Prefix, in the round's store, of the seconds of the longest step of one of the first workers that
have left a round which is over, by round. Its agent writes it, and those of other nodes judge by
it how long their own workers may take."""

ENDS_AT = "TORSH_ENDS_AT"
"""Variable with the end of the job's time, in seconds of the worker's host's monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnv:
    """Describes a worker's place in the job, as it is known when the worker starts."""

    rank: int
    """Rank among all workers, 0 <= rank < world_size."""
    world_size: int
    """Number of workers of this round."""
    local_rank: int
    """Rank among the workers of this node."""
    local_world_size: int
    """Number of workers of this node."""
    node_rank: int = 0
    """Rank of this node (torchrun's GROUP_RANK)."""
    num_nodes: int = 1
    """Number of nodes of this round (torchrun's GROUP_WORLD_SIZE)."""
    role_name: str = "default"
    """The role's name, as given with --role."""
    role_rank: int = -1
    """Rank among the workers of this role, of all nodes. -1 becomes rank: all have one role."""
    role_world_size: int = -1
    """Number of workers of this role. -1 becomes world_size."""
    master_addr: str = "127.0.0.1"
    """Host where rank 0's worker may bind master_port."""
    master_port: int = 29500
    """TCP port on master_addr that was free when the round began, 1 to 65535."""
    restart_count: int = 0
    """Number of times that the workers have been restarted after a failure."""
    max_restarts: int = 0
    """Number of times that they may be restarted."""
    run_id: str = "none"
    """Name of the job; equal on all nodes."""
    round: int = 0
    """Number of the round; every set of workers that starts together has its own."""
    store_endpoint: str = ""
    """Endpoint of this node's agent's store ("unix:@name" or "tcp:host:port"); "" is none."""
    secret: str = ""
    """The job's secret in hexadecimal; peers prove that they know it. "" is none."""
    error_file: str = ""
    """File in which the worker may write a JSON report of its failure; "" is none."""
    stack_file: str = ""
    """File in which its Python writes its stack when it is asked to stop; "" is none."""
    scratch: str = ""
    """Directory that is removed when the job is over, however it ends; "" is none."""
    status_file: str = ""
    """File with a page for each local rank, in which workers note their progress; "" is none."""
    served_at: str = ""
    """Endpoint at which rank 0 serves the store if no agent does; "" is master_addr:master_port."""
    jax_coordinator_port: int = 0
    """TCP port on master_addr for rank 0's JAX coordinator; 0 is none."""
    metrics_at: str = ""
    """URL at which the agent serves its workers' metrics; "" is none."""
    is_replacement: bool = False
    """True if it takes the place of a worker that was lost while the others continue."""
    ends_at: float | None = None
    """End of the job's time on this node, in seconds of its monotonic clock; None if unknown."""

    def __post_init__(self) -> None:
        for name in ("rank", "world_size"):
            if getattr(self, f"role_{name}") < 0:
                object.__setattr__(self, f"role_{name}", getattr(self, name))

    def to_environ(self) -> dict[str, str]:
        """Return the variables to set: torchrun's whole set, and TORSH_*."""
        values = {variable: str(getattr(self, field)) for variable, field in VARIABLES.items()}
        values["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        if self.is_replacement:
            values[REPLACEMENT] = "1"
        if self.ends_at is not None:
            values[ENDS_AT] = f"{self.ends_at:.3f}"
        return {name: value for name, value in values.items() if value != ""} | self._for_jax()

    def _for_jax(self) -> dict[str, str]:
        if not self.jax_coordinator_port:
            return {}
        host = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        return {
            "JAX_COORDINATOR_ADDRESS": f"{host}:{self.jax_coordinator_port}",
            "JAX_NUM_PROCESSES": str(self.world_size),
            "JAX_PROCESS_ID": str(self.rank),
        }

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WorkerEnv:
        """Read a worker's place from the variables that to_environ sets, and return it.

        Only RANK and WORLD_SIZE are required, as when a script is started by hand; the others have
        defaults. Raises ConfigError, which names the variable, for a missing or invalid one.
        """
        rank = _integer(environ, "RANK")
        world_size = _integer(environ, "WORLD_SIZE")
        if not 0 <= rank < world_size:
            raise ConfigError(f"RANK={rank} is not within 0 <= RANK < WORLD_SIZE={world_size}")
        port = _integer(environ, "MASTER_PORT", 29500)
        if not 1 <= port <= 65535:
            raise ConfigError(f"MASTER_PORT={port} is not a TCP port (1 to 65535)")
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=_integer(environ, "TORSH_LOCAL_RANK", _integer(environ, "LOCAL_RANK", rank)),
            local_world_size=_integer(environ, "LOCAL_WORLD_SIZE", world_size),
            node_rank=_integer(environ, "GROUP_RANK", 0),
            num_nodes=_integer(environ, "GROUP_WORLD_SIZE", 1),
            role_name=environ.get("ROLE_NAME", "default"),
            role_rank=_integer(environ, "ROLE_RANK", rank),
            role_world_size=_integer(environ, "ROLE_WORLD_SIZE", world_size),
            master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
            master_port=port,
            restart_count=_integer(environ, "TORCHELASTIC_RESTART_COUNT", 0),
            max_restarts=_integer(environ, "TORCHELASTIC_MAX_RESTARTS", 0),
            run_id=environ.get("TORCHELASTIC_RUN_ID", "none"),
            round=_integer(environ, "TORSH_ROUND", 0),
            store_endpoint=environ.get("TORSH_STORE_ENDPOINT", ""),
            secret=secret_text(environ),
            error_file=environ.get("TORCHELASTIC_ERROR_FILE", ""),
            stack_file=environ.get("TORSH_STACK_FILE", ""),
            scratch=environ.get("TORSH_SCRATCH", ""),
            status_file=environ.get("TORSH_STATUS_FILE", ""),
            metrics_at=environ.get("TORSH_METRICS_AT", ""),
            jax_coordinator_port=_jax_port(environ),
            is_replacement=environ.get(REPLACEMENT) == "1",
            ends_at=ends_at(environ),
        )


VARIABLES: Mapping[str, str] = {
    "RANK": "rank",
    "WORLD_SIZE": "world_size",
    "LOCAL_RANK": "local_rank",
    "LOCAL_WORLD_SIZE": "local_world_size",
    "GROUP_RANK": "node_rank",
    "GROUP_WORLD_SIZE": "num_nodes",
    "NODE_RANK": "node_rank",
    "ROLE_NAME": "role_name",
    "ROLE_RANK": "role_rank",
    "ROLE_WORLD_SIZE": "role_world_size",
    "MASTER_ADDR": "master_addr",
    "MASTER_PORT": "master_port",
    "TORCHELASTIC_RESTART_COUNT": "restart_count",
    "TORCHELASTIC_MAX_RESTARTS": "max_restarts",
    "TORCHELASTIC_RUN_ID": "run_id",
    "TORCHELASTIC_ERROR_FILE": "error_file",
    "TORSH_STACK_FILE": "stack_file",
    "TORSH_LOCAL_RANK": "local_rank",  # also where --virtual-local-rank makes LOCAL_RANK 0
    "TORSH_ROUND": "round",
    "TORSH_STORE_ENDPOINT": "store_endpoint",
    "TORSH_WORKER_SECRET": "secret",
    "TORSH_SCRATCH": "scratch",
    "TORSH_STATUS_FILE": "status_file",
    "TORSH_METRICS_AT": "metrics_at",
}
"""The variables and the fields that they carry; a variable whose field is "" is not set.

None of them configures torshrun itself. Therefore variables that a user sets for a torshrun started
by a worker (TORSH_SECRET, TORSH_RUN_ID) have the same meaning there as everywhere.
"""
PLACE = (
    *("rank", "world_size", "node_rank", "num_nodes", "role_rank", "role_world_size"),
    *("master_addr", "master_port", "restart_count", "round"),
)
"""Fields of a worker that keeps its process which may be others in the next round."""
ALL_VARIABLES = frozenset(
    (
        *VARIABLES,
        "JAX_COORDINATOR_ADDRESS",
        "JAX_NUM_PROCESSES",
        "JAX_PROCESS_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        REPLACEMENT,
        ENDS_AT,
    )
)
"""The names of the variables that to_environ may set."""


def place_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker that may be others in the next round."""
    return {name: environ[name] for name, field in VARIABLES.items() if field in PLACE}


def secret_text(environ: Mapping[str, str]) -> str:
    """Return the job's secret in hexadecimal; "" if there is none.

    It is that of this worker's round, or TORSH_SECRET, set by hand, in a job without torshrun.
    Raises ConfigError when an empty one was set.
    """
    text = environ.get("TORSH_WORKER_SECRET") or environ.get("TORSH_SECRET")
    if text == "":
        raise ConfigError("TORSH_SECRET is empty: unset it, or give one (openssl rand -hex 32)")
    return text or ""


def ends_at(environ: Mapping[str, str]) -> float | None:
    """Return the end of the job's time, in seconds of this host's monotonic clock.

    Returns None if it is unknown. Raises ConfigError if the variable is not a number.
    """
    text = environ.get(ENDS_AT)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{ENDS_AT}={text!r} is not a number of seconds") from None


def _jax_port(environ: Mapping[str, str]) -> int:
    """Return the coordinator's port; 0 if there is none, or only JAX understands its address."""
    port = environ.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None:
        if default is not None:
            return default
        raise ConfigError(
            f"{name} is not set. Start the script with torshrun, or set RANK, WORLD_SIZE, "
            f"MASTER_ADDR and MASTER_PORT for each process."
        )
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not an integer") from None
