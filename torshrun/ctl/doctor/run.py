"""Composes torshctl doctor: carries out a request, and returns a report and an exit code."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from torsh_runtime.errors import ConfigError
from torshrun.config import values
from torshrun.config.job import Address, RendezvousConfig
from torshrun.ctl.doctor import (
    accelerators,
    environment,
    fabric,
    interfaces,
    kernel,
    limits,
    machine,
    names,
    ports,
    stores,
    versions,
)
from torshrun.ctl.doctor.examination import Examination, examination, examine
from torshrun.ctl.doctor.finding import Finding
from torshrun.ctl.doctor.links.measuring import Measuring
from torshrun.ctl.doctor.links.orders import doctor_key, own_version
from torshrun.ctl.doctor.links.server import serve
from torshrun.ctl.doctor.report import Report, in_json, in_words
from torshrun.rendezvous.asking import REQUEST_TIMEOUT
from torshrun.topology.cpus import usable_cpus

AREAS = (
    *("versions", "machine", "kernel", "gpus", "fabric", "network", "names", "ports", "limits"),
    *("environment", "etcd", "rendezvous", "links"),
)
PROBLEMS = 1
"""The exit code if there is a problem."""
_MARGIN = 2.0  # names are looked up in both directions
"""The factor by which an area may take longer than one of its probes or requests."""
_WIDEST = 100
"""The most columns of advice, even if the terminal is wider."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Holds what the doctor is to examine."""

    rendezvous: RendezvousConfig | None
    """The place where nodes rendezvous, or None if it is not given."""
    secret: str
    master_port: int | None
    peers: tuple[Address, ...]
    all_pairs: bool
    network_check: bool
    with_gpus: bool
    """True if GPUs do the network check's all_reduces."""
    seconds: float
    """Seconds that a probe, a look-up or a request may take."""
    only: frozenset[str] = frozenset()
    """The areas to examine. Empty is all."""

    def includes(self, area: str) -> bool:
        return not self.only or area in self.only


def parse_areas(text: str) -> frozenset[str]:
    """Parse the names of areas. Raises ConfigError if one is unknown."""
    found = frozenset(filter(None, (part.strip() for part in text.split(","))))
    for area in sorted(found - set(AREAS)):
        raise ConfigError(f"--only: {area!r} is not one of {', '.join(AREAS)}")
    return found


def parse_peers(text: str) -> tuple[Address, ...]:
    """Parse the addresses of peers. Raises ConfigError if one is not HOST:PORT, or repeated."""
    found = values.endpoints(text)
    if any(each.scheme or not each.port for each in found):
        raise ConfigError("--peers: each is HOST:PORT, where torshctl doctor --serve runs")
    peers = tuple(Address(each.host, each.port or 0) for each in found)
    if len(set(peers)) < len(peers):
        raise ConfigError("--peers: one of them is named twice")
    return peers


def diagnose(wanted: Wanted, environ: Mapping[str, str], say: Say) -> Report:
    """Examine all areas, and then the links.

    That takes as long as the slowest area, plus the links. Raises ConfigError if there is nothing
    to examine.
    """
    stages = _local(wanted, environ), _stores(wanted)  # timed requests come when nothing else runs
    planned = [[each for each in stage if wanted.includes(each.area)] for stage in stages]
    measures_links = bool(wanted.peers) and wanted.includes("links")
    if not (any(planned) or measures_links):
        raise ConfigError(
            "--only leaves nothing to look at: etcd and rendezvous need --rdzv-endpoint (and "
            "--rdzv-backend), links needs --peers"
        )
    areas: dict[str, tuple[Finding, ...]] = {}
    for stage in planned:
        areas |= examine(stage, _MARGIN * wanted.seconds + 10.0)
    key = doctor_key(wanted.secret)
    measuring = Measuring(wanted.peers, key, say, wanted.with_gpus)
    if measures_links:
        areas["links"] = measuring.run(
            all_pairs=wanted.all_pairs, network_check=wanted.network_check
        )
    return Report(
        socket.gethostname(), own_version(), areas, tuple(measuring.links), tuple(measuring.reduced)
    )


def _local(wanted: Wanted, environ: Mapping[str, str]) -> list[Examination]:
    meeting, seconds = wanted.rendezvous, wanted.seconds
    endpoints = meeting.endpoints if meeting else ()
    hosts = tuple(dict.fromkeys(each.host for each in (*endpoints, *wanted.peers)))
    ways = endpoints or wanted.peers
    gather_variables = partial(environment.gather, environ, usable_cpus(environ), hosts)
    gather_ports = partial(ports.gather, environ, wanted.master_port, meeting)
    return [
        examination("versions", partial(versions.gather, seconds), versions.check),
        examination("machine", machine.gather, machine.check),
        examination("kernel", kernel.gather, kernel.check),
        examination("gpus", partial(accelerators.gather, environ, seconds), accelerators.check),
        examination("fabric", partial(fabric.gather, environ), fabric.check),
        examination("network", partial(interfaces.gather, ways, environ), interfaces.check),
        examination("names", partial(names.gather, hosts, seconds), names.check),
        examination("ports", gather_ports, ports.check),
        examination("limits", limits.gather, limits.check),
        examination("environment", gather_variables, environment.check),
    ]


def _stores(wanted: Wanted) -> list[Examination]:
    meeting = wanted.rendezvous
    if meeting is None:
        return []
    per_request = min(wanted.seconds, REQUEST_TIMEOUT)
    if meeting.backend == "etcd":
        gather = partial(stores.gather_etcd, meeting, per_request)
        return [examination("etcd", gather, stores.check_etcd)]
    served = partial(stores.gather_served, meeting, per_request)
    return [examination("rendezvous", served, stores.check_served)]


def show(report: Report, *, as_json: bool, environ: Mapping[str, str]) -> int:
    """Print the report and return the exit code."""
    plain = environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
    color = sys.stdout.isatty() and not plain
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    text = in_json(report) if as_json else in_words(report, color=color, width=width)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
    return PROBLEMS if report.worst == "problem" else 0


def serve_peers(listen: str, secret: str, say: Say) -> None:
    """Serve other doctors at [HOST:]PORT, until Ctrl-C or for an hour."""
    host, port = values.listening(listen if ":" in listen else f":{listen}")
    place = host or ("0.0.0.0" if secret else "127.0.0.1")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(place, port, secret, say))
