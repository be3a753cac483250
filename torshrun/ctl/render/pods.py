"""Computes what manifests of Kubernetes and its controllers say of pods, beyond the options of each
node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.ctl.render.job import ClusterJob

_MEBIBYTE = 1024 * 1024
_KUEUE = "kueue.x-k8s.io/"
_GROUP = "scheduling.k8s.io/group-name"
"""The annotation that names a pod's PodGroup to Volcano."""
_VOLCANO_QUEUE_OF_RAY = "volcano.sh/queue-name"
_BY_THE_RUNTIME = "the training runtime sets it: name one that does in trainjob: runtime"
_BY_RAY = "KubeRay sets it"
_REFUSED: Mapping[str, Mapping[str, str]] = {
    "kubernetes": {},
    "jobset": {},
    "trainjob": {
        "health_port": _BY_THE_RUNTIME,
        "priority_class": _BY_THE_RUNTIME,
        "restart_in_place": _BY_THE_RUNTIME,
        "volcano_queue": f"{_BY_THE_RUNTIME}, by podGroupPolicy: volcano",
    },
    "raycluster": {"health_port": _BY_RAY, "restart_in_place": _BY_RAY},
}
"""Keys of the section `kubernetes` that a manifest cannot express, and the reason."""
Pairs = Sequence[tuple[str, str]]
Facts = dict[str, Any]


def facts(
    name: str, job: ClusterJob, place: Mapping[str, Any], variables: Mapping[str, str]
) -> Facts:
    """Return the values that the templates of this target use in addition.

    `variables` are the containers' environment. Raises ConfigError if the job file asks for
    something that the target does not support.
    """
    _check(name, job, place)
    labels, annotations = (_mapping(job, place, key) for key in ("labels", "annotations"))
    requests, limits = _resources(job, place, job.cpus, job.memory, job.gpus)
    ours = _queue_labels(name, place)
    fewest, group = _fewest_pods(name, job, place), _group(name, job, place)
    _check_names(job, "labels", labels, ours)
    _check_names(job, "annotations", annotations, fewest | group)
    found: Facts = {
        "job_labels": labels | ours,
        "job_annotations": annotations | fewest,
        "pod_labels": labels,
        "pod_annotations": annotations | group,
        "node_selector": _mapping(job, place, "node_selector"),
        "requests": requests,
        "limits": limits,
        "makes_service": name == "kubernetes",
        "names_run": name != "raycluster",
        "variables": {**variables, **_health(place)},
    }
    return found | _OF[name](job, place, variables)


def _health(place: Mapping[str, Any]) -> dict[str, str]:
    port = place["health_port"]
    return {"TORSH_METRICS_PORT": f":{port}"} if port else {}


def _check(name: str, job: ClusterJob, place: Mapping[str, Any]) -> None:
    for key, why in _REFUSED[name].items():
        if place[key]:
            raise _refused(job, key, f"not possible with {name}: {why}")
    if place["kueue_queue"] and place["volcano_queue"]:
        raise _refused(job, "volcano_queue", "a job waits in one queue: leave kueue_queue out")
    if place["kueue_priority"] and not place["kueue_queue"]:
        raise _refused(job, "kueue_priority", "it needs kueue_queue")
    if place["restart_in_place"] and not job.requeue:
        raise _refused(job, "restart_in_place", "it needs cluster: requeue: true")
    if place["health_port"] and any(each.startswith("--metrics-port") for each in job.options):
        raise _refused(job, "health_port", "metrics_port sets it already: leave one of them out")
    if place["health_port"] == job.port and not job.meets:
        raise _refused(
            job, "health_port", f"{job.port} is the port of the rendezvous (cluster: port)"
        )


def _check_names(
    job: ClusterJob, key: str, given: Mapping[str, str], ours: Mapping[str, str]
) -> None:
    for name in given:
        if name in ours:
            raise _refused(job, key, f"{name}: another key of the section sets it already")


def _refused(job: ClusterJob, key: str, why: str) -> ConfigError:
    return ConfigError(f"{job.source}: cluster: kubernetes: {key}: {why}")


def _mapping(job: ClusterJob, place: Mapping[str, Any], key: str) -> dict[str, str]:
    pairs: Pairs = place[key]
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _refused(job, key, "a name is given twice")
    return found


# ---- queues


def _queue_labels(name: str, place: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    if place["kueue_queue"]:
        found[f"{_KUEUE}queue-name"] = place["kueue_queue"]
    if place["kueue_priority"]:
        found[f"{_KUEUE}priority-class"] = place["kueue_priority"]
    if place["volcano_queue"] and name == "raycluster":
        found[_VOLCANO_QUEUE_OF_RAY] = place["volcano_queue"]
    return found


def _fewest_pods(name: str, job: ClusterJob, place: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations with the fewest pods that Kueue may start an elastic Job with.

    Kueue supports that for Jobs only.
    """
    if name != "kubernetes" or not place["kueue_queue"] or not job.is_elastic:
        return {}
    return {
        f"{_KUEUE}job-min-parallelism": str(job.nodes.fewest),
        f"{_KUEUE}job-completions-equal-parallelism": "true",
    }


def _group(name: str, job: ClusterJob, place: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotation of the PodGroup. KubeRay creates PodGroups itself."""
    is_ours = place["volcano_queue"] and name != "raycluster"
    return {_GROUP: job.name} if is_ours else {}


# ---- resources


def _resources(
    job: ClusterJob, place: Mapping[str, Any], cpus: int | None, memory: int | None, gpus: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Return a pod's requests and limits.

    Resources that cannot be overcommitted have the same value in both.
    """
    requests, limits = {}, {}
    if cpus:
        requests["cpu"] = str(cpus)
    if memory:
        requests["memory"] = limits["memory"] = f"{-(-memory // _MEBIBYTE)}Mi"
    if gpus:
        limits[place["gpu_resource"]] = str(gpus)
    more = _mapping(job, place, "resources")
    for taken in ("cpu", "memory", place["gpu_resource"]):
        if taken in more:
            raise _refused(job, "resources", f"{taken}: cpus, memory and gpus of cluster: set it")
    return requests | more, limits | more


# ---- single targets


def _of_job(job: ClusterJob, place: Mapping[str, Any], variables: Mapping[str, str]) -> Facts:
    return {}


def _of_train_job(job: ClusterJob, place: Mapping[str, Any], variables: Mapping[str, str]) -> Facts:
    """Leave out the variables that Kubeflow Trainer sets as PET_*.

    These are the number of nodes and where they rendezvous.
    """
    if job.is_elastic:
        raise ConfigError(
            f"{job.source}: cluster: nodes: a TrainJob has a fixed number of nodes: give N, or "
            f"render kubernetes"
        )
    theirs = {"TORSH_NNODES"}
    if variables.get("TORSH_RDZV_BACKEND") == "tcp":
        theirs |= {"TORSH_RDZV_BACKEND", "TORSH_RDZV_ENDPOINT"}
    is_number = not job.workers or job.workers.isdigit()
    if is_number:
        theirs.add("TORSH_NPROC_PER_NODE")
    return {
        "variables": {name: each for name, each in variables.items() if name not in theirs},
        "workers": int(job.workers or 1) if is_number else 0,
    }


def _of_ray_cluster(
    job: ClusterJob, place: Mapping[str, Any], variables: Mapping[str, str]
) -> Facts:
    """Have Ray start the workers, without torshrun."""
    if job.setup and "ray start" in job.setup:
        raise ConfigError(
            f"{job.source}: setup: KubeRay does not start Ray itself where it finds 'ray start': "
            f"leave it out"
        )
    how = {"--module": ["python", "-m"], "--no-python": []}
    start = next((words for flag, words in how.items() if flag in job.options), ["python"])
    head = {**place, "resources": ()}
    requests, limits = _resources(job, head, place["head_cpus"], place["head_memory"], 0)
    setup = f"{{\nset -e\n{job.setup}\nset +e\n}}" if job.setup else ""
    return {
        "variables": dict(job.environment),
        "driver": [*start, *(job.target[1:] if job.target[0] == "--" else job.target)],
        "head_requests": requests,
        "head_limits": limits,
        "setup": setup,
    }


_OF = {
    "kubernetes": _of_job,
    "jobset": _of_job,
    "trainjob": _of_train_job,
    "raycluster": _of_ray_cluster,
}
