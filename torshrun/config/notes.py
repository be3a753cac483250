"""What was given and comes to nothing: said in a line each, never an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torshrun.config.nodes import first_endpoint, is_alone
from torshrun.config.options import OPTIONS
from torshrun.config.setting import Settings
from torshrun.config.values import CONF_WITHOUT_EFFECT, Endpoint

_LOCAL = ("localhost", "127.0.0.1", "::1")


def notes(settings: Settings, values: Mapping[str, Any], workers: int) -> Iterator[str]:
    """A line about each option that has no effect, or that is missed. What says in many words that
    there is one node (--nnodes 1, --node-rank 0, a rendezvous' endpoint) deserves none.
    """
    if values["rdzv_backend"] == "etcd" and not is_alone(values) and not settings["run_id"].given:
        yield (
            "--rdzv-id is not given: this job is one with any other at this etcd that has none "
            "either"
        )
    for key, why in _reasons(values).items():
        if settings[key].given:
            yield f"{settings[key].name} has no effect: {why}"
    for key in values["rdzv_conf"] or ():
        if key in CONF_WITHOUT_EFFECT:
            yield f"{settings['rdzv_conf'].name}: {key} has no effect here"
    for key, ranks in (("local_ranks_filter", "local ranks"), ("ranks_filter", "ranks")):
        if values[key] and min(values[key]) >= workers:
            yield f"{settings[key].name} names no worker: their {ranks} are 0 to {workers - 1}"


def is_static(values: Mapping[str, Any]) -> bool:
    """Whether the workers' MASTER_ADDR and MASTER_PORT are taken from the options, or where nodes
    meet.
    """
    return values["rdzv_backend"] == "static" and not values["standalone"]


def _reasons(values: Mapping[str, Any]) -> dict[str, str]:
    """By option, why it does not count."""
    kinds = [key for key in ("module", "no_python") if values["run_path"] and values[key]]
    inert = {option.key: option.without_effect for option in OPTIONS if option.without_effect}
    unused = _unused_by_nodes(values)
    return {**dict.fromkeys(kinds, "--run-path wins"), **_overruled(values), **unused, **inert}


def _unused_by_nodes(values: Mapping[str, Any]) -> dict[str, str]:
    if is_alone(values):
        why = "with one node nobody asks for it"
        return dict.fromkeys(("local_addr", "secret_file"), why)
    if is_static(values):
        return {}
    return {"node_rank": "only --rdzv-backend static has fixed ranks"}


def _overruled(values: Mapping[str, Any]) -> dict[str, str]:
    """Options that say something else about rank 0's place than what holds."""
    if values["standalone"]:
        different = {**_not_alone(values), **_other_master(values, None)}
        why = "--standalone is given"
    elif not is_static(values):
        different = _other_master(values, None)
        why = "only --rdzv-backend static uses it"
    else:
        different = _other_master(values, first_endpoint(values))
        why = "--rdzv-endpoint says where rank 0 listens"
    return {key: why for key, differs in different.items() if differs}


def _not_alone(values: Mapping[str, Any]) -> dict[str, bool]:
    """Whether they say something else than --standalone does."""
    endpoint: Endpoint | None = first_endpoint(values)
    return {
        "nnodes": values["nnodes"] != (1, 1),
        "node_rank": values["node_rank"] != 0,
        "rdzv_backend": values["rdzv_backend"] == "etcd",
        "rdzv_endpoint": bool(endpoint and (endpoint.port or endpoint.host not in _LOCAL)),
    }


def _other_master(values: Mapping[str, Any], endpoint: Endpoint | None) -> dict[str, bool]:
    if is_static(values) and endpoint is None:
        return {}
    host, port = endpoint or ("127.0.0.1", 0)
    return {
        "master_addr": values["master_addr"] not in (host, *_LOCAL),
        "master_port": (values["master_port"] or 0) != port,
    }
