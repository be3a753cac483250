"""Where the job's nodes meet: torshrun's own options and variables, as torshctl takes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torsh_runtime.errors import ConfigError
from torshrun.config.rendezvous import RendezvousConfig
from torshrun.config.request import gather
from torshrun.config.resolve_rendezvous import rendezvous

OPTIONS = (
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_conf",
    "master_addr",
    "master_port",
    "secret_file",
    "config",
)
"""Those of torshrun's options, by key, that say where nodes meet."""
_ANY_JOB = MappingProxyType(
    {"nnodes": "2", "standalone": "false", "node_rank": "0", "require_secret": "false"}
)
"""What else the rules about such a job ask for, and nothing here depends on."""


def meeting_place(given: Mapping[str, str | None], environ: Mapping[str, str]) -> RendezvousConfig:
    """`given` are the options of the command line by key. Raises ConfigError."""
    request = gather({**given, **_ANY_JOB}, None, (), environ)
    is_static = request["rdzv_backend"] == "static"
    if not request["rdzv_endpoint"] and not (is_static and request.has("master_addr")):
        raise ConfigError(
            "--rdzv-endpoint is missing: say where the job's nodes meet, with the same --rdzv-* "
            "options or variables (TORSH_RDZV_ENDPOINT) as torshrun has there"
        )
    return rendezvous(request, environ)
