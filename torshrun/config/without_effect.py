"""What was given and comes to nothing: said in a line each, never an error."""

from __future__ import annotations

from collections.abc import Iterator

from torshrun.config.options import OPTIONS
from torshrun.config.request import Request
from torshrun.config.resolve_rendezvous import first_endpoint, is_alone, is_static
from torshrun.config.values import CONF_WITHOUT_EFFECT, Endpoint

_LOCAL = ("localhost", "127.0.0.1", "::1")
_INERT = [(option.key, option.without_effect) for option in OPTIONS if option.without_effect]


def notes(request: Request, workers: int) -> Iterator[str]:
    """A line about each option that has no effect, or that is missed. What says in many words that
    there is one node (--nnodes 1, --node-rank 0, a rendezvous' endpoint) deserves none.
    """
    alone = is_alone(request)
    if request["rdzv_backend"] == "etcd" and not alone and not request.has("run_id"):
        yield (
            "--rdzv-id is not given: this job is one with any other at this etcd that has none "
            "either"
        )
    for key, why in (*_idle(request), *_overruled(request), *_INERT):
        if request.has(key):
            yield f"{request.name(key)} has no effect: {why}"
    for key in request["rdzv_conf"]:
        if key in CONF_WITHOUT_EFFECT:
            yield f"{request.name('rdzv_conf')}: {key} has no effect here"
    numbered = {"local_ranks_filter": "local ranks"} | ({"ranks_filter": "ranks"} if alone else {})
    for key, ranks in numbered.items():
        if request[key] and min(request[key]) >= workers:
            yield f"{request.name(key)} names no worker: their {ranks} are 0 to {workers - 1}"


def _idle(request: Request) -> Iterator[tuple[str, str]]:
    """Options that nothing asks for in such a job, and why."""
    for key in ("module", "no_python"):
        if request["run_path"] and request[key]:
            yield key, "--run-path wins"
    if is_alone(request):
        for key in ("local_addr", "secret_file"):
            yield key, "with one node nobody asks for it"
    elif not is_static(request):
        yield "node_rank", "only --rdzv-backend static has fixed ranks"


def _overruled(request: Request) -> Iterator[tuple[str, str]]:
    """Options that say something else about the nodes, or rank 0's place, than what holds."""
    given, holds = first_endpoint(request), Endpoint("127.0.0.1", 0)
    why = "only --rdzv-backend static uses it"
    if request["standalone"]:
        why = "--standalone is given"
        if request["nnodes"] != (1, 1):
            yield "nnodes", why
        if request["node_rank"]:
            yield "node_rank", why
        if request["rdzv_backend"] == "etcd":
            yield "rdzv_backend", why
        if given and (given.port or given.host not in _LOCAL):
            yield "rdzv_endpoint", why
    elif is_static(request):
        if given is None:
            return
        holds, why = given, "--rdzv-endpoint says where rank 0 listens"
    if request["master_addr"] not in (holds.host, *_LOCAL):
        yield "master_addr", why
    if (request["master_port"] or 0) != holds.port:
        yield "master_port", why
