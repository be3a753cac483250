"""Kubernetes manifests as a cluster takes them: what controllers make of their objects, and what
kubelets make of containers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

Manifest = dict[str, Any]


def objects(text: str) -> dict[tuple[str, str], Manifest]:
    """By kind and name."""
    found = [each for each in yaml.safe_load_all(text) if each]
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(named) == len(found)
    return named


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) is the variable's value, or stays if there is none, and $$ is one dollar sign: see
    third_party/forked/golang/expansion in Kubernetes.
    """

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)


def environment(
    container: Manifest, pod: Mapping[str, str], secrets: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """The container's variables. `pod` are its fields by their paths."""
    variables: dict[str, str] = {}
    for each in container.get("env", ()):
        source = each.get("valueFrom", {})
        if "fieldRef" in source:
            value = pod[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            value = secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        else:
            value = expanded(each["value"], variables)
        variables[each["name"]] = value
    return variables


def command(container: Manifest, variables: Mapping[str, str]) -> list[str]:
    """What is run, without the image's own entry point."""
    words = [*container.get("command", ()), *container.get("args", ())]
    return [expanded(word, variables) for word in words]


def reconciled(text: str) -> dict[tuple[str, str], Manifest]:
    """The same by kind and name, with what the controllers of JobSet and Kubeflow Trainer make of
    their objects: the Jobs of their pods and the Service by which these find each other.
    """
    found = objects(text)
    for kind, name in [*found]:
        if kind == "JobSet":
            found |= _of_job_set(found.pop((kind, name)))
        elif kind == "TrainJob":
            found |= _of_train_job(found.pop((kind, name)))
    return found


def _of_job_set(job_set: Manifest) -> dict[tuple[str, str], Manifest]:
    name, spec = job_set["metadata"]["name"], job_set["spec"]
    subdomain = spec["network"]["subdomain"]
    service = {"clusterIP": "None", "publishNotReadyAddresses": True}
    found: dict[tuple[str, str], Manifest] = {("Service", subdomain): {"spec": service}}
    for each in spec["replicatedJobs"]:
        job = each["template"]["spec"]
        job["template"]["spec"]["subdomain"] = subdomain
        found["Job", f"{name}-{each['name']}-0"] = {"spec": job}
    return found


def _of_train_job(train_job: Manifest) -> dict[tuple[str, str], Manifest]:
    """With the runtime torch-distributed, whose one container is called node."""
    name, trainer = train_job["metadata"]["name"], train_job["spec"]["trainer"]
    (patch,) = train_job["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template = job["template"]["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    index = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    set_by_it = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer.get("numProcPerNode", "auto")),
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29400",
    }
    container |= {key: trainer[key] for key in ("image", "command", "args")}
    container["resources"] = trainer.get("resourcesPerNode", {})
    container["env"] = [
        *trainer["env"],
        *({"name": key, "value": value} for key, value in set_by_it.items()),
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": index}},
    ]
    service = {"clusterIP": "None", "publishNotReadyAddresses": True}
    count = trainer["numNodes"]
    pod |= {"subdomain": name, "restartPolicy": "Never"}
    spec = {"completionMode": "Indexed", "completions": count, "parallelism": count}
    return {
        ("Service", name): {"spec": service},
        ("Job", f"{name}-node-0"): {"spec": {**spec, "template": template}},
    }


def restarts_in_place(container: Manifest, code: int) -> bool:
    """Whether the kubelet starts the container again, in its pod, that has ended so."""
    rules = container.get("restartPolicyRules", ())
    return any(
        (code in rule["exitCodes"]["values"]) == (rule["exitCodes"]["operator"] == "In")
        for rule in rules
    )
