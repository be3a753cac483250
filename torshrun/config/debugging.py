"""Changes a job for a debugger: a worker at a breakpoint stands still, but does not hang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torshrun.config.job import Address
from torshrun.config.request import Request


def debugged(request: Request, workers: int, *, is_debugged: bool) -> dict[str, Any]:
    """Return fields of LaunchConfig that replace those that were requested.

    `is_debugged` says whether a debugger runs torshrun and follows it into the workers. Raise
    ConfigError if the ports of --debugpy are invalid.
    """
    off: dict[str, Any] = {"hang_timeout": 0.0, "preload": ()}
    if is_debugged:  # torshrun itself may stand at a breakpoint, too
        return {**off, "agent_timeout": 0.0, "debugpy": None}
    if request["debugpy"]:
        return {**off, "debugpy": _address(request, workers)}
    return {}


def debugging_notes(request: Request, workers: int, *, is_debugged: bool) -> Iterator[str]:
    """Yield a line about where debuggers find the workers, and one per option without effect."""
    fields = debugged(request, workers, is_debugged=is_debugged)
    first = fields.get("debugpy")
    if first:
        yield f"debugpy serves local rank 0 at {first}, others at that port plus their local rank"
        del fields["debugpy"]
    who = f"{request.name('debugpy')} is given" if first else "torshrun runs in a debugger"
    for key, value in fields.items():
        if request.has(key) and request[key] != value:
            yield f"{request.name(key)} has no effect: {who}"


def _address(request: Request, workers: int) -> Address:
    host, port = request["debugpy"]
    last = port + workers - 1
    if request["no_python"] and not request["run_path"]:
        raise request.refused("debugpy", "with --no-python there is no Python to serve it")
    if not port:
        raise request.refused("debugpy", "nobody would know what port 0 becomes: give one")
    if last > 65535:
        why = f"{workers} workers need the ports {port} to {last}, and 65535 is the last one"
        raise request.refused("debugpy", why)
    return Address(host or "0.0.0.0", port)
