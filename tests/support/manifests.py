"""Kubernetes manifests as a cluster takes them: what its kubelet makes of a container."""

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
