"""Decides which of torchrun's jobs torshrun cannot run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torsh_runtime.errors import ConfigError
from torshrun.config.command_line import parse
from torshrun.config.request import Request, gather

BACKENDS = ("static", "c10d", "tcp", "etcd")
NUMBERS = ("auto", "cpu", "gpu")
"""Values of --nproc-per-node besides numbers."""


def why_not(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return why torshrun cannot run the job of torchrun's arguments.

    Returns an empty text if it can, or if it is to report that they are invalid.
    """
    try:
        line = parse(argv)
        if "help" in line.given or "version" in line.given:
            return ""
        return _why_not(gather(line.given, line.script, line.arguments, environ))
    except (ConfigError, OSError):
        return ""


def _why_not(request: Request) -> str:
    def text(key: str) -> str:
        return request.entries[key].text or ""

    workers = text("nproc_per_node")
    if not workers.strip().isdecimal() and workers not in NUMBERS and workers.isalpha():
        return why_not_workers(workers)
    return (
        why_not_backend(text("rdzv_backend"))
        or why_not_plugins(text("logs_specs"), text("event_log_handler"))
        or ""
    )


def why_not_workers(number: str) -> str:
    return f"--nproc-per-node {number} counts devices that only torch knows"


def why_not_backend(backend: str) -> str:
    """Return why a rendezvous backend, by its name in torch, is not served. Empty if it is."""
    if backend in BACKENDS:
        return ""
    return f"its rendezvous {backend!r} is a plugin of torch, or etcd's version 2"


def why_not_plugins(logs_specs: str, event_log_handler: str) -> str:
    """Return why classes for torch's launcher are not served. Empty if none is given."""
    if logs_specs:
        return f"--logs-specs {logs_specs} is a plugin of torch"
    if event_log_handler not in ("", "null"):
        return f"--event-log-handler {event_log_handler} is a plugin of torch"
    return ""
