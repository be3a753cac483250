"""Resolves how the nodes of a job find each other: place, access, secret and timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.config.job import (
    Access,
    Address,
    Backend,
    RendezvousConfig,
)
from torshrun.config.request import Request
from torshrun.config.secret import read_secret
from torshrun.config.values import Endpoint, Nodes

_PORTS: Mapping[Backend, int] = {"static": 29500, "tcp": 29400, "etcd": 2379}
"""Default ports of torchrun and etcd."""


_SHORTEST_TTL = 1.0


def is_alone(request: Request) -> bool:
    return bool(request["standalone"] or request["nnodes"] == (1, 1))


def is_static(request: Request) -> bool:
    """Return whether the options give MASTER_ADDR and MASTER_PORT, or where nodes meet."""
    return request["rdzv_backend"] == "static" and not request["standalone"]


def first_endpoint(request: Request) -> Endpoint | None:
    return next(iter(request["rdzv_endpoint"]), None)


def rendezvous(request: Request, environ: Mapping[str, str]) -> RendezvousConfig:
    backend: Backend = "tcp" if request["rdzv_backend"] == "c10d" else request["rdzv_backend"]
    conf: Mapping[str, Any] = request["rdzv_conf"]
    return RendezvousConfig(
        backend=backend,
        endpoints=_endpoints(request, backend),
        node_rank=_node_rank(request) if backend == "static" else None,
        is_host=conf.get("is_host") if backend == "tcp" else None,
        local_addr=request["local_addr"] or "",
        access=_access(request, conf, environ) if backend == "etcd" else Access(),
        secret=_secret(request, environ),
        ttl=_ttl(request, conf),
        **_timeouts(backend, conf),
    )


def _endpoints(request: Request, backend: Backend) -> tuple[Address, ...]:
    given: tuple[Endpoint, ...] = request["rdzv_endpoint"]
    if backend == "static" and not given and request.knows("master_addr"):
        given = (Endpoint(request["master_addr"], request["master_port"]),)
    key = "rdzv_endpoint"
    if not given:
        name = request.name(key) + (" (or --master-addr)" if backend == "static" else "")
        why = f"with several nodes {name} has to say where they meet, like node0:{_PORTS[backend]}"
        raise request.refused("nnodes", why)
    if len(given) > 1 and backend != "etcd":
        raise request.refused(key, f"with --rdzv-backend {backend} there is one place to meet")
    if any(endpoint.port == 0 for endpoint in given):
        raise request.refused(key, "other nodes cannot know what port 0 becomes; give one")
    if backend != "etcd" and any(endpoint.scheme for endpoint in given):
        raise request.refused(key, "http:// and https:// are for etcd; give HOST:PORT alone")
    return tuple(Address(one.host, one.port or _PORTS[backend]) for one in given)


def _node_rank(request: Request) -> int:
    nodes: Nodes = request["nnodes"]
    if nodes.fewest != nodes.most:
        raise request.refused(
            "nnodes",
            "with --rdzv-backend static every node has its rank, so their number is fixed: give N, "
            "or --rdzv-backend tcp or etcd",
        )
    rank: int = request["node_rank"]
    if rank >= nodes.most:
        why = f"{rank} is not possible: with {nodes.most} nodes ranks end at {nodes.most - 1}"
        raise request.refused("node_rank", why)
    return rank


def _timeouts(backend: Backend, conf: Mapping[str, Any]) -> dict[str, float]:
    """Return the timeouts that are given.

    The `timeout` of torchrun is the time for which its static rendezvous waits for the others.
    """
    names = ("join_timeout", "last_call_timeout", "close_timeout")
    found = {name: conf[name] for name in names if name in conf}
    if backend == "static" and "timeout" in conf:
        found.setdefault("join_timeout", conf["timeout"])
    return found


def _ttl(request: Request, conf: Mapping[str, Any]) -> float:
    """Return ttl as given, or the time that torchrun waits for heartbeats."""
    silence = conf.get("keep_alive_interval", 5.0) * conf.get("keep_alive_max_attempt", 3)
    ttl: float = conf.get("ttl", silence)
    if ttl < _SHORTEST_TTL:
        raise ConfigError(
            f"{request.name('rdzv_conf')}: a node cannot count as lost after {ttl:g} s of "
            f"silence; ttl (or keep_alive_interval times keep_alive_max_attempt) is at least "
            f"{_SHORTEST_TTL:g}"
        )
    return ttl


def _access(request: Request, conf: Mapping[str, Any], environ: Mapping[str, str]) -> Access:
    user, password = environ.get("TORSH_ETCD_USER", ""), environ.get("TORSH_ETCD_PASSWORD", "")
    if bool(user) != bool(password):
        raise ConfigError("TORSH_ETCD_USER and TORSH_ETCD_PASSWORD go together: set both or none")
    cacert = conf.get("cacert") or conf.get("ca_cert", "")
    cert = conf.get("cert") or conf.get("ssl_cert", "")
    key = conf.get("key") or conf.get("ssl_cert_key", "")
    if bool(cert) != bool(key):
        raise request.refused("rdzv_conf", "cert and key go together: give both")
    tls = _is_tls(request, conf, has_files=bool(cacert or cert))
    return Access(tls=tls, cacert=cacert, cert=cert, key=key, user=user, password=password)


def _is_tls(request: Request, conf: Mapping[str, Any], *, has_files: bool) -> bool:
    """Return whether endpoints, protocol and certificates ask for TLS.

    Raise ConfigError if they contradict each other.
    """
    schemes = {endpoint.scheme for endpoint in request["rdzv_endpoint"]} - {""}
    if len(schemes) > 1:
        why = "http:// and https:// cannot be mixed: one protocol is for all endpoints"
        raise request.refused("rdzv_endpoint", why)
    said = schemes | ({conf["protocol"]} if "protocol" in conf else set())
    if len(said) > 1 or (has_files and "http" in said):
        why = "protocol=http (or http://) and https:// or certificates exclude each other"
        raise request.refused("rdzv_conf", why)
    return has_files or "https" in said


def _secret(request: Request, environ: Mapping[str, str]) -> str:
    secret = read_secret(request["secret_file"], request.name("secret_file"), environ)
    if request.entries["secret_file"].is_hint:
        from torshrun.clusters.user_key import job_secret

        secret = job_secret(secret, request["run_id"] or "")
    if request["require_secret"] and not secret:
        raise ConfigError(
            f"{request.name('require_secret')}: this job has no secret: make one by openssl rand "
            f"-hex 32, chmod 600 its file, and give the same to all nodes by --secret-file or "
            f"TORSH_SECRET"
        )
    return secret
