"""From settings to a RendezvousConfig: the rules about jobs of several nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.config.rendezvous import Access, Address, Backend, RendezvousConfig
from torshrun.config.setting import Settings
from torshrun.config.values import Endpoint, Nodes, seconds

_PORTS: Mapping[Backend, int] = {"static": 29500, "tcp": 29400, "etcd": 2379}
"""As torchrun and etcd have it."""
_SHORTEST_TTL = 1.0


def is_alone(values: Mapping[str, Any]) -> bool:
    """Whether the job has one node, and nobody to meet."""
    return bool(values["standalone"] or values["nnodes"] == (1, 1))


def rendezvous(
    settings: Settings, values: Mapping[str, Any], environ: Mapping[str, str]
) -> RendezvousConfig | None:
    """How the nodes meet; None for a job of one node. Raises ConfigError."""
    if is_alone(values):
        _check_rank_alone(settings, values)
        return None
    backend = backend_of(values)
    conf: Mapping[str, str] = values["rdzv_conf"] or {}
    return RendezvousConfig(
        backend=backend,
        endpoints=_endpoints(settings, values, backend),
        node_rank=_node_rank(settings, values, backend),
        local_addr=values["local_addr"] or "",
        access=_access(settings, values, backend, conf, environ),
        secret=_secret(settings, values, environ),
        ttl=_ttl(settings, conf),
        **_timeouts(backend, conf),
    )


def _check_rank_alone(settings: Settings, values: Mapping[str, Any]) -> None:
    if values["node_rank"] and not values["standalone"]:
        raise ConfigError(
            f"{settings['node_rank'].name}: {values['node_rank']} is not possible: the job has one "
            f"node, whose rank is 0; --nnodes says how many it has"
        )


def first_endpoint(values: Mapping[str, Any]) -> Endpoint | None:
    """The first that --rdzv-endpoint names, if any."""
    return next(iter(values["rdzv_endpoint"] or ()), None)


def backend_of(values: Mapping[str, Any]) -> Backend:
    """The backend by its own name."""
    backend: Backend = "tcp" if values["rdzv_backend"] == "c10d" else values["rdzv_backend"]
    return backend


def _endpoints(
    settings: Settings, values: Mapping[str, Any], backend: Backend
) -> tuple[Address, ...]:
    given: tuple[Endpoint, ...] = values["rdzv_endpoint"] or ()
    if backend == "static" and not given and settings["master_addr"].given:
        given = (Endpoint(values["master_addr"], values["master_port"]),)
    name = settings["rdzv_endpoint"].name
    if not given:
        instead = " (or --master-addr)" if backend == "static" else ""
        raise ConfigError(
            f"{settings['nnodes'].name}: with several nodes {name}{instead} has to say where they "
            f"meet, like node0:{_PORTS[backend]}"
        )
    if len(given) > 1 and backend != "etcd":
        raise ConfigError(f"{name}: with --rdzv-backend {backend} there is one place to meet")
    if any(endpoint.port == 0 for endpoint in given):
        raise ConfigError(f"{name}: other nodes cannot know what port 0 becomes; give one")
    if backend != "etcd" and _schemes(settings):
        raise ConfigError(f"{name}: http:// and https:// are for etcd; give HOST:PORT alone")
    return tuple(Address(host, port or _PORTS[backend]) for host, port in given)


def _schemes(settings: Settings) -> set[str]:
    """Those that the endpoints are given with."""
    parts = (settings["rdzv_endpoint"].text or "").split(",")
    return {
        scheme.strip() for scheme, found, _ in (part.partition("://") for part in parts) if found
    }


def _node_rank(settings: Settings, values: Mapping[str, Any], backend: Backend) -> int | None:
    if backend != "static":
        return None
    nodes: Nodes = values["nnodes"]
    if nodes.fewest != nodes.most:
        raise ConfigError(
            f"{settings['nnodes'].name}: with --rdzv-backend static every node has its rank, so "
            f"their number is fixed: give N, or --rdzv-backend tcp or etcd"
        )
    rank: int = values["node_rank"]
    if rank >= nodes.most:
        name = settings["node_rank"].name
        raise ConfigError(
            f"{name}: {rank} is not possible: with {nodes.most} nodes ranks end at {nodes.most - 1}"
        )
    return rank


def _timeouts(backend: Backend, conf: Mapping[str, str]) -> dict[str, float]:
    """torchrun's `timeout` is what its static rendezvous waits for the others."""
    names = ("join_timeout", "last_call_timeout", "close_timeout")
    found = {name: seconds(conf[name]) for name in names if name in conf}
    if backend == "static" and "timeout" in conf:
        found.setdefault("join_timeout", seconds(conf["timeout"]))
    return found


def _ttl(settings: Settings, conf: Mapping[str, str]) -> float:
    """As given, or as long as torchrun waits for signs of life."""
    interval = seconds(conf.get("keep_alive_interval", "5"))
    ttl = interval * int(conf.get("keep_alive_max_attempt", "3"))
    ttl = seconds(conf["ttl"]) if "ttl" in conf else ttl
    if ttl < _SHORTEST_TTL:
        raise ConfigError(
            f"{settings['rdzv_conf'].name}: a node cannot count as lost after {ttl:g} s of "
            f"silence; ttl (or keep_alive_interval times keep_alive_max_attempt) is at least "
            f"{_SHORTEST_TTL:g}"
        )
    return ttl


def _access(
    settings: Settings,
    values: Mapping[str, Any],
    backend: Backend,
    conf: Mapping[str, str],
    environ: Mapping[str, str],
) -> Access:
    if backend != "etcd":
        return Access()
    user, password = environ.get("TORSH_ETCD_USER", ""), environ.get("TORSH_ETCD_PASSWORD", "")
    if bool(user) != bool(password):
        raise ConfigError("TORSH_ETCD_USER and TORSH_ETCD_PASSWORD go together: set both or none")
    cacert = conf.get("cacert") or conf.get("ca_cert", "")
    cert = conf.get("cert") or conf.get("ssl_cert", "")
    key = conf.get("key") or conf.get("ssl_cert_key", "")
    name = settings["rdzv_conf"].name
    if bool(cert) != bool(key):
        raise ConfigError(f"{name}: cert and key go together: give both or none")
    for path in filter(None, (cacert, cert, key)):
        if not Path(path).is_file():
            raise ConfigError(f"{name}: there is no file {path}")
    return Access(
        tls=_is_tls(settings, conf, has_files=bool(cacert or cert)),
        cacert=cacert,
        cert=cert,
        key=key,
        user=user,
        password=password,
    )


def _is_tls(settings: Settings, conf: Mapping[str, str], *, has_files: bool) -> bool:
    """As the endpoints, protocol and certificates say, which must not contradict each other."""
    schemes = _schemes(settings)
    if len(schemes) > 1:
        raise ConfigError(
            f"{settings['rdzv_endpoint'].name}: http:// and https:// cannot be mixed: one "
            f"protocol is for all endpoints"
        )
    said = schemes | ({conf["protocol"]} if "protocol" in conf else set())
    if len(said) > 1 or (has_files and "http" in said):
        raise ConfigError(
            f"{settings['rdzv_conf'].name}: protocol=http (or http://) and https:// or "
            f"certificates exclude each other"
        )
    return has_files or "https" in said


def _secret(settings: Settings, values: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """That of TORSH_SECRET or of a file; inside a worker the variable is of the job around."""
    path: str | None = values["secret_file"]
    if path is None:
        return "" if "TORCHELASTIC_RUN_ID" in environ else environ.get("TORSH_SECRET", "").strip()
    name = settings["secret_file"].name
    try:
        secret = Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read: {error}") from None
    except ValueError:
        raise ConfigError(
            f"{name}: {path} is not text: put a long random text in it (openssl rand -hex 32)"
        ) from None
    if not secret:
        raise ConfigError(f"{name}: {path} is empty: put a long random text in it")
    return secret
