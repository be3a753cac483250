"""What was given and comes to nothing: said in a line each, never an error."""

from __future__ import annotations

from collections.abc import Iterator

from torshrun.config.options import OPTIONS
from torshrun.config.request import Request
from torshrun.config.resolve_rendezvous import first_endpoint, is_alone, is_static
from torshrun.config.values import CONF_WITHOUT_EFFECT, Endpoint

_LOCAL = ("localhost", "127.0.0.1", "::1")


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
    for key, why in _reasons(request).items():
        if request.has(key):
            yield f"{request.name(key)} has no effect: {why}"
    for key in request["rdzv_conf"]:
        if key in CONF_WITHOUT_EFFECT:
            yield f"{request.name('rdzv_conf')}: {key} has no effect here"
    numbered = {"local_ranks_filter": "local ranks"} | ({"ranks_filter": "ranks"} if alone else {})
    for key, ranks in numbered.items():
        if request[key] and min(request[key]) >= workers:
            yield f"{request.name(key)} names no worker: their {ranks} are 0 to {workers - 1}"


def _reasons(request: Request) -> dict[str, str]:
    """By option, why it does not count."""
    kinds = [key for key in ("module", "no_python") if request["run_path"] and request[key]]
    inert = {option.key: option.without_effect for option in OPTIONS if option.without_effect}
    unused = _unused_by_nodes(request)
    return {**dict.fromkeys(kinds, "--run-path wins"), **_overruled(request), **unused, **inert}


def _unused_by_nodes(request: Request) -> dict[str, str]:
    if is_alone(request):
        why = "with one node nobody asks for it"
        return dict.fromkeys(("local_addr", "secret_file"), why)
    if is_static(request):
        return {}
    return {"node_rank": "only --rdzv-backend static has fixed ranks"}


def _overruled(request: Request) -> dict[str, str]:
    """Options that say something else about rank 0's place than what holds."""
    endpoint = first_endpoint(request) if is_static(request) else None
    different = _other_master(request, endpoint or Endpoint("127.0.0.1", 0))
    if request["standalone"]:
        different |= _not_alone(request)
        why = "--standalone is given"
    elif not is_static(request):
        why = "only --rdzv-backend static uses it"
    elif endpoint:
        why = "--rdzv-endpoint says where rank 0 listens"
    else:
        return {}
    return {key: why for key, differs in different.items() if differs}


def _not_alone(request: Request) -> dict[str, bool]:
    """Whether they say something else than --standalone does."""
    endpoint = first_endpoint(request)
    return {
        "nnodes": request["nnodes"] != (1, 1),
        "node_rank": request["node_rank"] != 0,
        "rdzv_backend": request["rdzv_backend"] == "etcd",
        "rdzv_endpoint": bool(endpoint and (endpoint.port or endpoint.host not in _LOCAL)),
    }


def _other_master(request: Request, endpoint: Endpoint) -> dict[str, bool]:
    return {
        "master_addr": request["master_addr"] not in (endpoint.host, *_LOCAL),
        "master_port": (request["master_port"] or 0) != endpoint.port,
    }
