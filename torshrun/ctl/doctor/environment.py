"""Examines the environment variables that jobs read, and those that schedulers have set.

Values of secrets are never shown.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torshrun.ctl.doctor import options
from torshrun.ctl.doctor.finding import Finding, note, ok, problem, warning
from torshrun.ctl.doctor.options import OptionVariable

_RELEVANT = re.compile(
    r"(MASTER|NCCL|GLOO|TORSH|PET|TORCH|TORCHELASTIC|OMP|MKL|CUDA|JAX|UCX|FI)_\w+"
    r"|(LOCAL_|GROUP_|NODE_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE"
    r"|PYTHON(UNBUFFERED|PATH|HOME|STARTUP)|LD_(PRELOAD|LIBRARY_PATH)|HIP_VISIBLE_DEVICES"
    r"|(https?|all|no)_proxy",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"SECRET|PASSWORD|PASSWD|TOKEN|CREDENTIAL|(^|_)(API_?)?KEY($|_)"
    r"|^(TORSH|PET)_(EXPORT|SSH_COMMAND)$",
    re.IGNORECASE,
)
_LONGEST = 120
"""The most characters of a value that are shown."""
_LONGEST_MISTAKE = 400
"""The most characters of an error message about it that are shown."""
_KNOWN = re.compile(
    r"TORSH_(SECRET|REQUIRE_SECRET|ETCD_USER|ETCD_PASSWORD|WORKER_SECRET|COMMIT_MEMORY|ENDS_AT|LOG|ROUND"
    r"|METRICS_AT|SCRATCH|STATUS_FILE|STORE_ENDPOINT|SOCKET_IFNAME|SOCKET_STREAMS|TUNING|TUNE_ALLOCATOR"
    r"|SHARE_ARRAYS|ALGORITHM|HEARTBEAT|LOCAL_RANK|RUN_ID|KEEPER_SCRATCH|RECORDER|PARK|IMPORTS"
    r"|STACK_FILE|ON_GPU_FAILURE|REPLACEMENT|COPIES)"
)
"""Variables that torshrun, its workers and the runtime read besides those of options."""
_PLACES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE")


class Scheduler(NamedTuple):
    """Describes a scheduler by a variable that only it sets."""

    name: str
    variable: str
    nodes: str
    """The variable with the number of nodes or ranks. Empty if there is none."""


SCHEDULERS = (
    Scheduler("Slurm", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"),
    Scheduler("PBS", "PBS_JOBID", "PBS_NUM_NODES"),
    Scheduler("LSF", "LSB_JOBID", "LSB_DJOB_NUMPROC"),
    Scheduler("Grid Engine", "SGE_TASK_ID", "NHOSTS"),
    Scheduler("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"),
    Scheduler("MPICH or Intel MPI", "PMI_SIZE", "PMI_SIZE"),
    Scheduler("Kubernetes", "KUBERNETES_SERVICE_HOST", ""),
)


@dataclass(frozen=True, slots=True)
class Environment:
    variables: Mapping[str, str]
    """The whole environment, of which only relevant variables are shown."""
    processors: int
    """The number of processors that this process may use."""
    hosts: tuple[str, ...]
    """Hosts that jobs connect to by HTTP, which are those of etcd."""
    preloaded: Mapping[str, bool]
    """The files of LD_PRELOAD, and whether they exist."""
    options: Mapping[str, OptionVariable]
    """The variables that set an option of torshrun."""


def gather(variables: Mapping[str, str], processors: int, hosts: tuple[str, ...]) -> Environment:
    words = re.split(r"[ :]+", variables.get("LD_PRELOAD", ""))
    preloaded = {word: "/" not in word or Path(word).exists() for word in words if word}
    return Environment(dict(variables), processors, hosts, preloaded, options.read(variables))


def check(facts: Environment) -> Iterator[Finding]:
    yield from _schedulers(facts.variables)
    shown = [name for name in sorted(facts.variables) if _RELEVANT.fullmatch(name)]
    for name in shown:
        yield _judge(name, facts)
    if not shown:
        yield ok("variables", "none that jobs read")


def _schedulers(variables: Mapping[str, str]) -> Iterator[Finding]:
    found = [each for each in SCHEDULERS if variables.get(each.variable)]
    for scheduler in found:
        size = variables.get(scheduler.nodes, "")
        told = f", {scheduler.nodes}={size}" if size else ""
        value = f"{scheduler.variable}={variables[scheduler.variable]}{told}"
        yield ok(f"scheduler: {scheduler.name}", value)
    if not found:
        yield ok("scheduler", "none (no variable of one is set)")


def shown_value(name: str, value: str) -> str:
    """Return the variable's value as it may be shown.

    Secrets and passwords in URLs are hidden, and long values are cut.
    """
    if _SECRET.search(name) or (name.endswith("_RDZV_ENDPOINT") and "@" in value):
        return "(set, not shown)" if value else "(empty)"
    return _shortened(re.sub(r"(://)[^/@\s]*@", r"\1…@", value), _LONGEST)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def _judge(name: str, facts: Environment) -> Finding:
    value = facts.variables[name]
    shown = shown_value(name, value)
    if name in facts.options:
        return _judge_option(name, value, shown, facts.options[name])
    for fits, judge in _RULES:
        if re.fullmatch(fits, name) and (found := judge(name, value, facts)):
            return Finding(name, shown, found.severity, found.advice)
    return ok(name, shown)


def _judge_option(name: str, value: str, shown: str, found: OptionVariable) -> Finding:
    told = f"{shown or '(empty, the same as not set)'}, for {found.option.spellings[-1]}"
    if found.overruled_by:
        return note(
            name,
            told,
            f"{found.overruled_by} is set, too, and takes precedence: unset one of them.",
        )
    if not found.mistake:
        return ok(name, told)
    is_shown = shown == _shortened(value, _LONGEST)
    why = found.mistake if is_shown else f"it is not {found.option.metavar}"
    return problem(
        name,
        told,
        f"torshrun ends with an error, unless it is given the option itself: "
        f"{_shortened(why, _LONGEST_MISTAKE)}. Correct or unset {name}.",
    )


# ---- rules


Rule = Callable[[str, str, Environment], Finding | None]


def _left_over(name: str, value: str, facts: Environment) -> Finding | None:
    if facts.variables.get("TORCHELASTIC_RUN_ID"):
        return None  # the environment of a worker
    if not re.fullmatch(r"[0-9]{1,9}", value):
        return problem(name, value, f"It is not a number: unset {name}.")
    return warning(
        name,
        value,
        f"Left over from a job, or set for scripts started by hand: unset {name} in this shell, "
        "or scripts without a launcher wait for ranks that never come. torshrun sets its own.",
    )


def _threads(name: str, value: str, facts: Environment) -> Finding | None:
    first = value.partition(",")[0]
    if not re.fullmatch(r"[1-9][0-9]{0,5}", first):
        return warning(name, value, f"It is not a number of threads: unset {name}.")
    if int(first) > facts.processors:
        return warning(
            name,
            value,
            f"This process may use {facts.processors} processors: unset it, and torshrun gives "
            "each worker its share.",
        )
    return None


def _debug(name: str, value: str, facts: Environment) -> Finding | None:
    if value.upper() in ("INFO", "TRACE", "DETAIL"):
        return note(
            name, value, f"It makes workers print a lot, and slows them down: unset {name} later."
        )
    return None


def _switched_off(name: str, value: str, facts: Environment) -> Finding | None:
    if value not in ("", "0"):
        return note(
            name,
            value,
            "A fast path between GPUs is switched off; unset it unless it works around a fault of "
            "this machine.",
        )
    return None


def _blocking(name: str, value: str, facts: Environment) -> Finding | None:
    if value == "1":
        return note(name, value, "Useful for finding errors, but slow: unset it for real runs.")
    return None


def _preload(name: str, value: str, facts: Environment) -> Finding | None:
    missing = [path for path, there in facts.preloaded.items() if not there]
    if missing:
        return problem(name, value, f"{missing[0]} does not exist: correct or unset LD_PRELOAD.")
    return note(
        name, value, "Every worker loads it first: unset it if something cannot be explained."
    )


def _python_home(name: str, value: str, facts: Environment) -> Finding | None:
    return warning(name, value, f"It changes which Python libraries are found: unset {name}.")


def _no_gpu(name: str, value: str, facts: Environment) -> Finding | None:
    if value.strip() in ("", "-1"):
        return note(name, value, f"It hides all GPUs: unset {name} if jobs are to use them.")
    return None


def _master(name: str, value: str, facts: Environment) -> Finding | None:
    if name == "MASTER_PORT" and not (re.fullmatch(r"[0-9]{1,5}", value) and int(value) < 65536):
        return problem(name, value, "It is not a port (1 to 65535): correct or unset it.")
    if facts.variables.get("TORCHELASTIC_RUN_ID"):
        return None
    return note(
        name,
        value,
        "torshrun does not read it (--master-addr, --master-port and --rdzv-endpoint say where), "
        "scripts started by hand do: unset it if it is left over.",
    )


def _proxy(name: str, value: str, facts: Environment) -> Finding | None:
    bare = ", ".join(host for host in facts.hosts if not _is_excepted(host, facts.variables))
    if value and bare:
        return note(
            name,
            value,
            f"torshrun's etcd client uses no proxy, but other tools (etcdctl, curl) do: add {bare} "
            "to no_proxy for them.",
        )
    return None


def _is_excepted(host: str, variables: Mapping[str, str]) -> bool:
    listed = variables.get("no_proxy", "") or variables.get("NO_PROXY", "")
    return any(_covers(entry.strip(), host) for entry in listed.split(","))


def _covers(entry: str, host: str) -> bool:
    if entry == "*" or (entry and (host == entry or host.endswith(f".{entry.lstrip('.')}"))):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _unknown(name: str, value: str, facts: Environment) -> Finding | None:
    if not _KNOWN.fullmatch(name):
        return note(
            name,
            value,
            "No option of torshrun has that name (torshrun --help lists them); see whether it is "
            "misspelt. Settings of the runtime have names of their own (docs/backends.md).",
        )
    return None


_RULES: tuple[tuple[str, Rule], ...] = (
    ("|".join(_PLACES), _left_over),
    ("MASTER_ADDR|MASTER_PORT", _master),
    ("OMP_NUM_THREADS|MKL_NUM_THREADS", _threads),
    ("NCCL_DEBUG|TORCH_DISTRIBUTED_DEBUG", _debug),
    ("NCCL_(P2P|SHM|IB)_DISABLE", _switched_off),
    ("CUDA_LAUNCH_BLOCKING", _blocking),
    ("CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES", _no_gpu),
    ("LD_PRELOAD", _preload),
    ("PYTHONHOME|PYTHONSTARTUP", _python_home),
    ("(?i:https?_proxy|all_proxy)", _proxy),
    ("(TORSH|PET)_.*", _unknown),
)
"""Patterns of names, each with the rule that judges the value. The first rule with a finding
counts.
"""
