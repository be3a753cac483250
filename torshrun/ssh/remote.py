"""Runs on a host that ssh connects to: introduces itself, receives the job, and becomes its agent.

python -P -m torshrun.ssh.remote SILENCE [HERE]

SILENCE is in seconds. HERE says that torshrun has started this itself, without ssh.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from torsh_runtime.errors import ConfigError, TorshError
from torshrun import exit_codes
from torshrun.ssh import frames
from torshrun.ssh.wire import Wire

if TYPE_CHECKING:
    from torshrun.config.request import Request

WAITING = 600.0
"""The most seconds until the job is known. Other hosts may take their time."""
READER_STALL = 30.0
"""Seconds that the last output waits for a reader who does not read."""
HERE = "here"
_DISCARD = 9  # the port does not matter for finding a route


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()
    if (
        HERE in sys.argv
    ):  # the variable may be that of a login over ssh, which did not start this process
        os.environ.pop("SSH_CONNECTION", None)
    wire = Wire(float(sys.argv[1]))
    facts = {"version": version("torshrun"), "address": _addresses()[1]}
    wire.send(frames.message(frames.HELLO, facts))
    try:
        code, begun = _serve(wire), True
    except (TorshError, OSError) as error:
        _say(f"error: {error}")
        code, begun = exit_codes.USAGE, False
    except Exception:
        _say(f"internal error; please report this:\n{traceback.format_exc()}")
        code, begun = exit_codes.LOST, False
    wire.finish(frames.message(frames.EXIT, {"code": code, "begun": begun}), READER_STALL)
    sys.exit(code)


def _serve(wire: Wire) -> int:
    """Answer requests, run the job, and return its exit code on this host.

    Raises ConfigError before it has begun.
    """
    with contextlib.ExitStack() as held:
        while message := wire.receive(WAITING):
            kind, content = message
            if kind == frames.JOB:
                return _run(wire, json.loads(content))
            if kind == frames.MEET:
                wire.send(frames.message(frames.ENDPOINT, _meet(json.loads(content), held)))
    raise ConfigError("torshrun was not told what to do here: the connection has ended")


def _meet(facts: Mapping[str, Any], held: contextlib.ExitStack) -> Mapping[str, Any]:
    """Return where the others can rendezvous.

    The port is reserved until the agent has served it.
    """
    from torshrun.rendezvous.ports import bound

    port = held.enter_context(bound(facts["port"])).getsockname()[1]
    return {"host": _address_for(facts["peers"]), "port": port}


def _addresses() -> tuple[str, str]:
    """Return the two addresses of the connection that started this process.

    The first is that of the other side. Both are empty without ssh.
    """
    words = os.environ.get("SSH_CONNECTION", "").split()
    return (words[0], words[2]) if len(words) == 4 else ("", "")


def _address_for(peers: list[str]) -> str:
    """Return the address by which those hosts reach this one. HERE is the host that called ssh."""
    from torshrun.config.job import Address
    from torshrun.rendezvous.address import is_loopback, routable

    caller = _addresses()[0]
    places = [caller if peer == HERE else peer for peer in peers]
    places = [place for place in places if place and not is_loopback(place)]
    if not places:
        return _addresses()[1] or "127.0.0.1"
    return routable([Address(place, _DISCARD) for place in places], may_be_private=False)


def _run(wire: Wire, facts: Mapping[str, Any]) -> int:
    from torshrun.config.resolve import resolve

    if facts["one_output"]:  # stdout and stderr are the same there, so keep the order of lines
        os.dup2(1, 2)
    directory = facts["directory"]
    try:
        os.chdir(directory)
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be used here: {error.strerror}. Workers run in the directory in "
            "which torshrun was called: it must exist on every host"
        ) from None
    os.environ["PWD"] = directory
    os.environ.update(facts["exports"])
    job = resolve(_request(facts), {**os.environ, **facts["credentials"]}).job
    from torshrun.composition import launch

    if not wire.guard(facts["grace"], facts["stop_signal"]):
        raise ConfigError("the connection has ended before the job began")
    return launch(job)


def _request(facts: Mapping[str, Any]) -> Request:
    from torshrun.config.request import Entry, Request

    return Request(
        entries={key: Entry(*texts) for key, texts in facts["entries"].items()},
        target=Entry(*facts["target"]) if facts["target"] else None,
        arguments=tuple(Entry(*texts) for texts in facts["arguments"]),
        environment={name: Entry(*texts) for name, texts in facts["environment"].items()},
    )


def _say(text: str) -> None:
    print(f"torshrun: {text}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
