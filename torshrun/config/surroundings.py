"""What the scheduler or launcher around torshrun tells, where its user has said nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torshrun.clusters.detection import detect, with_secret
from torshrun.clusters.hints import PLACE, Hints, Machine
from torshrun.config.options import BY_KEY
from torshrun.config.request import Entry, Request

_MEETING = ("master_addr", "master_port")


def look_around(request: Request, environ: Mapping[str, str], machine: Machine) -> Request:
    """The same request, with hints in place of defaults. ConfigError if what there is cannot make
    a job, and the user has not said what the job is.
    """
    hints = detect(request["cluster"], environ, machine)
    if hints is None:
        return request
    if _is_contradicted(request, hints):
        hints = _without(hints, *PLACE)
    elif hints.mistake:
        raise request.refused("cluster", hints.mistake)
    if request.has("rdzv_endpoint") or request["rdzv_backend"] != "static":
        hints = _without(hints, *_MEETING)
    if not request.has("secret_file"):
        hints = with_secret(hints, environ)
    entries = {**request.entries, **_entries(request, hints)}
    return replace(request, entries=entries, cluster=hints)


def _entries(request: Request, hints: Hints) -> Mapping[str, Entry]:
    return {
        key: Entry(hint.text, f"{hints.cluster}: {hint.source}", hint.source, is_hint=True)
        for key, hint in hints.options.items()
        if not request.has(key)
    }


def _without(hints: Hints, *keys: str) -> Hints:
    return replace(hints, **dict.fromkeys(keys))  # type: ignore[arg-type]


def _is_contradicted(request: Request, hints: Hints) -> bool:
    """Whether the user has said something else about how many nodes there are, or which this is;
    where the cluster cannot say it, whether the user has.
    """
    if request["standalone"]:
        return True
    if hints.mistake:
        return request.has("nnodes")
    if hints.nnodes is None and request["nnodes"] == (1, 1):
        return True  # one node has no rank
    return any(
        hint is not None and request.has(key) and request[key] != BY_KEY[key].kind.parse(hint.text)
        for key, hint in (("nnodes", hints.nnodes), ("node_rank", hints.node_rank))
    )


def account(request: Request) -> str:
    """What was found, in a line for people; "" if nothing was."""
    hints = request.cluster
    if hints is None:
        return ""
    said = [*hints.found]
    if hints.nnodes and hints.master_addr and hints.master_port:
        said.append(f"meeting at {request['master_addr']}:{request['master_port']}")
    if hints.secret_file:
        said.append(f"with a secret made of {hints.secret_file.text}")
    if hints.time_limit:
        said.append(f"{request['time_limit'] / 60:.0f} min left")
    return f"{hints.cluster}: {', '.join(said)}"
