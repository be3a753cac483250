"""Where torshctl finds a run: the options that say where its nodes meet."""

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
from torshrun.config.resolve import rendezvous
from torshrun.config.secret import read_secret
from torshrun.ctl.cluster_jobs import reachable

if TYPE_CHECKING:
    from torshrun.config.job import RendezvousConfig
    from torshrun.ctl.places import Asking

Command = TypeVar("Command", bound=Callable[..., Any])
Options = dict[str, Any]

_MEETING = "rdzv_backend rdzv_endpoint rdzv_conf master_addr master_port secret_file config"
"""Those of torshrun's options, by key, that say where nodes meet."""
_ANY_JOB = {"nnodes": "2", "standalone": "false", "node_rank": "0", "require_secret": "false"}
"""What else the rules about such a job ask for, and nothing here depends on."""
_PATIENCE = 10.0
"""Seconds for which an etcd that has failed is tried again; a store of an agent does not return."""


def meeting(command: Command) -> Command:
    """Add the options that say where the nodes of a run meet."""
    for key in reversed(_MEETING.split()):
        option = BY_KEY[key]
        add = click.option(*option.spellings, key, metavar=option.metavar, help=option.help)
        command = add(command)
    return command


def asking(command: Command) -> Command:
    """Add the options by which a run's agents are asked."""
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
    """Where nodes meet, if that is said; the secret ("" is none) and the master's port, too."""
    request = gather({**given, **_ANY_JOB}, None, (), environ)
    is_said = _says_where(request)
    secret = read_secret(request["secret_file"], request.name("secret_file"), environ)
    place = rendezvous(request, environ) if is_said else None
    return place, secret, request["master_port"] if request.has("master_port") else None


def is_place_given(given: Mapping[str, str | None], environ: Mapping[str, str]) -> bool:
    """Whether it is said where nodes meet."""
    return _says_where(gather({**given, **_ANY_JOB}, None, (), environ))


def _says_where(request: Request) -> bool:
    is_static = request["rdzv_backend"] == "static"
    return bool(request["rdzv_endpoint"]) or (is_static and request.has("master_addr"))


def meeting_place(
    given: Mapping[str, str | None], environ: Mapping[str, str], run_id: str = ""
) -> RendezvousConfig:
    """`given` are the options of the command line by key. Raises ConfigError."""
    request = gather({**given, **_ANY_JOB}, None, (), environ)
    request = reachable(request, run_id, environ, RealMachine())
    if not _says_where(request):
        raise ConfigError(
            "--rdzv-endpoint is missing: say where the job's nodes meet, with the same --rdzv-* "
            "options or variables (TORSH_RDZV_ENDPOINT) as torshrun has there"
        )
    return rendezvous(request, environ)


def reach_of(options: Options, run_id: str) -> tuple[RendezvousConfig, float]:
    """Where the nodes of a run meet, and how long a store that fails is tried again."""
    config = meeting_place(options, os.environ, run_id)
    return config, _PATIENCE if config.backend == "etcd" else 0.0


def asking_of(options: Options) -> Asking:
    """How the run is reached that the command line may name."""
    from torshrun.ctl.places import Asking

    timeout = values.seconds(options.pop("timeout"))

    def is_given(run_id: str) -> bool:
        request = gather({**options, **_ANY_JOB}, None, (), os.environ)
        return _says_where(reachable(request, run_id, os.environ, RealMachine()))

    return Asking(is_given, partial(reach_of, options), timeout)
