"""Explains why a keeper could not create a PID namespace, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path

from torshrun.procfs import read_text

STEPS = {
    "p": "finding its own pid in /proc",
    "u": "leaving its namespaces",
    "i": "mapping its user in a user namespace",
    "k": "starting a process in the new namespace",
    "m": "mounting a /proc in the new namespace",
}
"""The keeper's step, by the stage that it reports in keeper/namespace.h."""

_FORBIDDING = {
    "kernel/unprivileged_userns_clone": ("0", "1"),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user/max_user_namespaces": ("0", "10000"),
    "user/max_pid_namespaces": ("0", "10000"),
    "user/max_mnt_namespaces": ("0", "10000"),
}
"""Settings below /proc/sys: the value that forbids namespaces, and one that allows them."""


def explain(stage: str, error: int, proc: Path = Path("/proc")) -> str:
    """Return what failed, what forbids it, and what to do about it.

    `stage` is the letter that the keeper reported, and `error` the errno.
    """
    step = STEPS.get(stage, "starting")
    return (
        f"cannot give the workers a PID namespace: the keeper failed in {step} "
        f"({os.strerror(error)}). {_reason(stage, proc)} Or leave the PID namespace out: workers "
        f"still end with the agent, unless agent and keeper are killed at the same moment."
    )


def _reason(stage: str, proc: Path) -> str:
    for name, (forbids, allows) in _FORBIDDING.items():
        if read_text(proc / "sys" / name).strip() == forbids:
            setting = name.replace("/", ".")
            return (
                f"The machine's setting {setting}={forbids} forbids it: as root run "
                f"`sysctl -w {setting}={allows}`."
            )
    if stage == "m":
        return (
            "The container hides parts of /proc: start it with --security-opt "
            "systempaths=unconfined (Docker, Podman) or procMount: Unmasked (Kubernetes)."
        )
    if "Seccomp:\t2" in read_text(proc / "self/status"):
        return (
            "A seccomp filter, most likely the container's, may forbid it: start the container "
            "with --cap-add SYS_ADMIN or --security-opt seccomp=unconfined."
        )
    return "It needs CAP_SYS_ADMIN (root has it) or a kernel that lets users make user namespaces."
