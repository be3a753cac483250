"""Reads what a pod of Kubernetes knows beyond the TORSH_* variables of its manifest.

The environment has no number of nodes, and a name such as jupyter-bob-3 looks like a StatefulSet's
pod. Nothing is guessed from names.
"""

from __future__ import annotations

from dataclasses import replace

from torshrun.clusters.hints import GRACE_MARGIN, NUMBER, Environ, Hint, Hints, Machine

_GRACE_PERIOD = 30.0  # terminationGracePeriodSeconds, unless the manifest has another


def allocation(environ: Environ, machine: Machine) -> Hints | None:
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    return Hints(
        cluster="kubernetes",
        found=("a pod",),
        shutdown_timeout=Hint(
            f"{_GRACE_PERIOD - GRACE_MARGIN:g}", "terminationGracePeriodSeconds' default, 30 s"
        ),
    )


def place(hints: Hints, environ: Environ, machine: Machine) -> Hints:
    """Add the node rank of an Indexed Job.

    TORSH_NNODES and TORSH_RDZV_ENDPOINT in the manifest give the rest.
    """
    index = environ.get("JOB_COMPLETION_INDEX", "")
    if not NUMBER.fullmatch(index):
        return hints
    told = f"pod {index} of an Indexed Job"
    return replace(hints, found=(told,), node_rank=Hint(index, "JOB_COMPLETION_INDEX"))
