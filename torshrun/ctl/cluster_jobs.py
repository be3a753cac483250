"""Finds a cluster's job by its run id alone.

The scheduler knows where the nodes of such a job rendezvous, and its secret comes from a key of
this user.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from torshrun.clusters.hints import Machine
from torshrun.clusters.slurm_job import meeting_place
from torshrun.clusters.user_key import user_key_path
from torshrun.config.request import Entry, Request

_OF_SCHEDULERS = ("slurm-", "pbs-", "lsf-")


def reachable(
    request: Request, run_id: str, environ: Mapping[str, str], machine: Machine
) -> Request:
    """Return `request` completed by where the run meets and which file its secret is made of.

    Only what the user has not given is added, as far as `run_id` tells it.
    """
    found = {"run_id": Entry(run_id, "RUN", "RUN")} if run_id else {}
    if not request.has("rdzv_endpoint") and not request.has("master_addr"):
        place = meeting_place(run_id, machine)
        found |= {"rdzv_endpoint": Entry(place, "slurm", "RUN")} if place else {}
    is_given = request.has("secret_file") or "TORSH_SECRET" in environ
    if run_id.startswith(_OF_SCHEDULERS) and not is_given and (key := _key(environ)):
        found["secret_file"] = Entry(key, "RUN", "this user's key", is_hint=True)
    return replace(request, entries={**request.entries, **found})


def _key(environ: Mapping[str, str]) -> str:
    """Return the path of this user's key, or an empty string if there is none."""
    try:
        path = user_key_path(environ)
    except OSError:
        return ""
    return path if os.path.lexists(path) else ""
