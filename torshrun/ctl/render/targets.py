"""Lists what can be rendered: each target's template, file name and required keys."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.ctl.render import pods
from torshrun.ctl.render.engine import fill
from torshrun.ctl.render.job import ClusterJob
from torshrun.ctl.render.keys import SECTIONS

_LONGEST_SIGNAL = 65535
"""Seconds: the earliest that Slurm can send a signal before the end of a job."""
_LARGEST_STARTUP = 15_000
"""Bytes of a startup script. AWS accepts 16 KiB, including what is put before it."""


@dataclass(frozen=True, slots=True)
class Target:
    """Describes one kind of script or manifest."""

    template: str
    suffix: str
    """The end of the file's name, after the job's name."""
    mode: int = 0o666
    """The file's mode, before the umask."""
    tool: str = ""
    """The command line tool that a script for a cloud needs. Empty for others."""
    title: str = ""
    """The name of a cloud, for people. Empty for others."""
    sections: tuple[str, ...] = ()
    """The sections of the job file with its keys. By default the one of its own name."""


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "slurm": Target("slurm.sbatch.j2", ".sbatch"),
        "pbs": Target("pbs.sh.j2", ".pbs"),
        "lsf": Target("lsf.sh.j2", ".lsf"),
        # These files contain a secret.
        "kubernetes": Target("kubernetes.yaml.j2", ".yaml", 0o600),
        "jobset": Target("jobset.yaml.j2", ".yaml", 0o600, sections=("kubernetes",)),
        "trainjob": Target("trainjob.yaml.j2", ".yaml", 0o600, sections=("kubernetes", "trainjob")),
        "raycluster": Target(
            "raycluster.yaml.j2", ".yaml", 0o600, sections=("kubernetes", "raycluster")
        ),
        "compose": Target("compose.yaml.j2", ".yaml"),
        "aws": Target("aws.sh.j2", "-aws.sh", 0o777, "aws (1 or 2)", "Amazon EC2"),
        "gcp": Target("gcp.sh.j2", "-gcp.sh", 0o777, "gcloud", "Google Compute Engine"),
        "azure": Target("azure.sh.j2", "-azure.sh", 0o777, "az", "Azure"),
    }
)
_SCHEDULERS = ("slurm", "pbs", "lsf")
_CONTAINERS = ("kubernetes", "jobset", "trainjob", "raycluster", "compose")


def render(name: str, job: ClusterJob) -> str:
    """Return the whole text for one of TARGETS.

    Raises ConfigError if the job file lacks what the target needs.
    """
    target = TARGETS[name]
    sections = target.sections or (name,)
    place = {key: value for each in sections for key, value in job.places[each].items()}
    _check_needed(name, job, place)
    job = replace(job, setup=place["setup"] or job.setup)
    facts: dict[str, Any] = {"job": job, "place": place}
    if name in _SCHEDULERS:
        return fill(target.template, facts | _for_scheduler(name, job))
    if target.tool:
        return fill(target.template, facts | _for_cloud(name, job))
    facts |= _for_containers(name, job)
    if "kubernetes" in sections:
        facts |= pods.facts(name, job, place, facts["variables"])
    return fill(target.template, facts)


def _check_needed(name: str, job: ClusterJob, place: Mapping[str, Any]) -> None:
    keys = SECTIONS.get(name, {})
    missing = [key for key, each in keys.items() if each.is_needed and place[key] is None]
    if missing:
        raise ConfigError(f"{job.source}: for {name} cluster: {name}: needs {', '.join(missing)}")
    if name in _CONTAINERS and not job.image:
        raise ConfigError(f"{job.source}: for {name} cluster: needs image, the container's")
    if job.meets and place.get("etcd_members"):
        raise ConfigError(f"{job.source}: rdzv_endpoint and etcd_members exclude each other")


# ---- options of torshrun


def _for_scheduler(name: str, job: ClusterJob) -> dict[str, Any]:
    _check_notice(name, job)
    options = [f"--nproc-per-node={job.workers}"] if job.workers else []
    options += [f"--nnodes={_nodes(job)}"] if job.meets else []
    options += [f"--run-id={job.run_id}"] if job.run_id else []
    if job.own_shutdown_timeout or (name == "pbs" and job.time_limit):
        options.append(f"--shutdown-timeout={job.shutdown_timeout}")
    if name == "slurm" and job.requeue and "--requeue-on-preempt" not in job.options:
        options.append("--requeue-on-preempt")
    return {"command": _command((*options, *job.options), job)}


def _check_notice(name: str, job: ClusterJob) -> None:
    if job.time_limit and job.time_limit <= job.notice:
        raise ConfigError(
            f"{job.source}: cluster: notice: {job.notice} s before the end of {job.time_limit} s "
            f"(time_limit) the job has not begun: give a smaller notice"
        )
    if name == "slurm" and job.notice > _LONGEST_SIGNAL:
        raise ConfigError(
            f"{job.source}: cluster: notice: sbatch takes no --signal of more than "
            f"{_LONGEST_SIGNAL} s: give a smaller notice"
        )


def _for_containers(name: str, job: ClusterJob) -> dict[str, Any]:
    first = f"{job.name}-node-0-0" if name == "jobset" else f"{job.name}-0"
    variables = _variables(job, f"{first}.{job.name}:{job.port}")
    etcd = f"{job.name}-etcd"
    members = [f"{etcd}-{i}" for i in range(job.places["kubernetes"]["etcd_members"])]
    if name == "compose":
        variables |= _at_etcd(job, "etcd:2379") | {"TORSH_RUN_ID": job.run_id or job.name}
    elif members:
        variables |= _at_etcd(job, ",".join(f"{each}.{etcd}:2379" for each in members))
    return {
        "variables": {**job.environment, **variables},
        "words": ("torshrun", *job.options, *job.target),
        "setup": f'set -e\n{job.setup}\nexec "$@"',
        "secret": secrets.token_hex(32),
        "etcd": etcd,
        "etcd_cluster": ",".join(f"{each}=http://{each}.{etcd}:2380" for each in members),
    }


def _for_cloud(name: str, job: ClusterJob) -> dict[str, Any]:
    variables = {"TORSH_RUN_ID": job.name, **_variables(job, "")}
    variables.pop("TORSH_RDZV_ENDPOINT", None)  # known once the first machine has started
    facts = {"job": job, "variables": variables, "command": _command(job.options, job)}
    startup = fill("startup.sh.j2", {**facts, "runner": fill("runner.sh.j2", facts)})
    if len(startup.encode()) > _LARGEST_STARTUP:
        raise ConfigError(
            f"{job.source}: the startup script would have more than {_LARGEST_STARTUP} bytes, "
            f"which clouds refuse: put setup into a file that it fetches, or into the image"
        )
    target = TARGETS[name]
    return {"startup": startup, "cloud": name, "title": target.title, "tool": target.tool}


def _variables(job: ClusterJob, endpoint: str) -> dict[str, str]:
    """Return torshrun's variables, the same on each node."""
    found = {"TORSH_NNODES": _nodes(job), "TORSH_SHUTDOWN_TIMEOUT": str(job.shutdown_timeout)}
    if job.workers:
        found["TORSH_NPROC_PER_NODE"] = job.workers
    if job.run_id:
        found["TORSH_RUN_ID"] = job.run_id
    if not job.meets:
        found |= {"TORSH_RDZV_BACKEND": "tcp", "TORSH_RDZV_ENDPOINT": endpoint}
    return found


def _at_etcd(job: ClusterJob, endpoints: str) -> dict[str, str]:
    if job.meets:
        return {}
    return {"TORSH_RDZV_BACKEND": "etcd", "TORSH_RDZV_ENDPOINT": endpoints}


def _nodes(job: ClusterJob) -> str:
    return f"{job.nodes.fewest}:{job.nodes.most}" if job.is_elastic else str(job.nodes.most)


def _command(options: tuple[str, ...], job: ClusterJob) -> list[tuple[str, ...]]:
    """Return the command, as the words of each line."""
    return [("torshrun",), *((option,) for option in options), job.target]
