"""Reads the options that say where the nodes of a run rendezvous."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torsh_runtime.errors import ConfigError
from torshrun.clusters.detection import RealMachine
from torshrun.config import values
from torshrun.config.options import BY_KEY
from torshrun.config.request import Request, gather
from torshrun.config.resolve_rendezvous import rendezvous
from torshrun.config.secret import read_secret
from torshrun.ctl.cluster_jobs import reachable

if TYPE_CHECKING:
    from torshrun.config.job import RendezvousConfig
    from torshrun.ctl.places import Asking

Command = TypeVar("Command", bound=Callable[..., Any])
Options = dict[str, Any]

_MEETING = "rdzv_backend rdzv_endpoint rdzv_conf master_addr master_port secret_file config"
"""The keys of the torshrun options that say where nodes rendezvous."""
_ANY_JOB = {"nnodes": "2", "standalone": "false", "node_rank": "0", "require_secret": "false"}
"""Values that satisfy the other rules for such a job. Nothing here depends on them."""
_PATIENCE = 10.0
"""Seconds for which a failed etcd is tried again. An agent's store does not return."""


def meeting(command: Command) -> Command:
    """Add the options that say where the nodes of a run rendezvous."""
    for key in reversed(_MEETING.split()):
        option = BY_KEY[key]
        add = click.option(*option.spellings, key, metavar=option.metavar, help=option.help)
        command = add(command)
    return command


def asking(command: Command) -> Command:
    """Add the options for asking a run's agents."""
    timeout = click.option(
        "--timeout",
        default="15",
        metavar="SECONDS",
        help="How long to wait for the nodes of a RUN. [default: 15]",
    )
    return timeout(meeting(command))


def place_if_given(
    given: Mapping[str, str | None], environ: Mapping[str, str]
) -> tuple[RendezvousConfig | None, str, int | None]:
    """Return where nodes rendezvous if it is given, the secret and the master's port.

    The secret is empty if there is none.
    """
    request = gather({**given, **_ANY_JOB}, None, (), environ)
    is_said = _says_where(request)
    secret = read_secret(request["secret_file"], request.name("secret_file"), environ)
    place = rendezvous(request, environ) if is_said else None
    return place, secret, request["master_port"] if request.has("master_port") else None


def is_place_given(given: Mapping[str, str | None], environ: Mapping[str, str]) -> bool:
    """Return whether the options or the environment say where nodes rendezvous."""
    return _says_where(gather({**given, **_ANY_JOB}, None, (), environ))


def _says_where(request: Request) -> bool:
    is_static = request["rdzv_backend"] == "static"
    return bool(request["rdzv_endpoint"]) or (is_static and request.has("master_addr"))


def meeting_place(
    given: Mapping[str, str | None], environ: Mapping[str, str], run_id: str = ""
) -> RendezvousConfig:
    """Return where the run's nodes rendezvous.

    `given` has the command line's options by key. Raises ConfigError if no place is given.
    """
    request = gather({**given, **_ANY_JOB}, None, (), environ)
    request = reachable(request, run_id, environ, RealMachine())
    if not _says_where(request):
        raise ConfigError(
            "--rdzv-endpoint is missing: say where the job's nodes rendezvous, with the same "
            "--rdzv-* options or variables (TORSH_RDZV_ENDPOINT) as torshrun has there"
        )
    return rendezvous(request, environ)


def reach_of(options: Options, run_id: str) -> tuple[RendezvousConfig, float]:
    """Return where the nodes of a run rendezvous, and for how many seconds to retry the store."""
    config = meeting_place(options, os.environ, run_id)
    return config, _PATIENCE if config.backend == "etcd" else 0.0


def asking_of(options: Options) -> Asking:
    """Return how to reach the run that the command line may name."""
    from torshrun.ctl.places import Asking

    timeout = values.seconds(options.pop("timeout"))

    def is_given(run_id: str) -> bool:
        request = gather({**options, **_ANY_JOB}, None, (), os.environ)
        return _says_where(reachable(request, run_id, os.environ, RealMachine()))

    return Asking(is_given, partial(reach_of, options), timeout)
