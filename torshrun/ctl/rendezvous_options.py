"""Where the job's nodes meet: torshrun's own options and variables, as torshctl takes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torsh_runtime.errors import ConfigError
from torshrun.config.gather import gather
from torshrun.config.nodes import rendezvous
from torshrun.config.rendezvous import RendezvousConfig

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
_ANY_JOB = MappingProxyType({"nnodes": "2", "standalone": "false", "node_rank": "0"})
"""What else the rules about such a job ask for, and nothing here depends on."""
_READ = (*(key for key in OPTIONS if key != "config"), *_ANY_JOB, "local_addr")


def meeting_place(given: Mapping[str, str | None], environ: Mapping[str, str]) -> RendezvousConfig:
    """`given` are the options of the command line by key. Raises ConfigError."""
    settings = gather({**given, **_ANY_JOB}, None, (), environ)
    values = {key: settings.value(key) for key in _READ}
    is_named = values["rdzv_endpoint"] or (
        values["rdzv_backend"] == "static" and settings["master_addr"].given
    )
    if not is_named:
        raise ConfigError(
            "--rdzv-endpoint is missing: say where the job's nodes meet, with the same --rdzv-* "
            "options or variables (TORSH_RDZV_ENDPOINT) as torshrun has there"
        )
    found = rendezvous(settings, values, environ)
    assert found is not None  # by _ANY_JOB
    return found
