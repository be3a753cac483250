"""Creates network namespaces with virtual cables between them: nodes on one machine.

They have no names: each lives as long as a process in it, which ends when this program does. So
    nothing can be left behind, however it ends.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import UnavailableError
from benchmarks.processes import RunError, wait_until
from benchmarks.spawn import entering

INTERFACE = "cable"
_NETWORK = "192.0.2.0/24"
_START = 5.0


@dataclass(frozen=True, slots=True)
class Cable:
    """Represents two namespaces, each by a process in it, and their addresses on the cable.

    TCP's congestion control is Linux's own default there, regardless of this machine's setting.
    """

    holders: tuple[int, int]
    addresses: tuple[str, str] = ("192.0.2.1", "192.0.2.2")


@contextlib.contextmanager
def cable() -> Iterator[Cable]:
    """Create a cable that is removed when the block ends.

    Raises UnavailableError if that is not possible: it needs root, `ip`, `unshare` and `nsenter`.
    """
    with contextlib.ExitStack() as stack:
        try:
            laid = Cable((_hold(stack), _hold(stack)))
            _lay(laid)
        except (OSError, RunError) as error:
            raise UnavailableError(f"no network namespaces: {error}") from None
        yield laid


@dataclass(frozen=True, slots=True)
class Star:
    """Represents namespaces with a cable each to a common switch, and their addresses there."""

    holders: tuple[int, ...]
    addresses: tuple[str, ...]


@contextlib.contextmanager
def star(count: int) -> Iterator[Star]:
    """Create cables that are removed when the block ends. Raises UnavailableError like cable()."""
    with contextlib.ExitStack() as stack:
        try:
            hub = _hold(stack)
            _run([*entering(hub), "ip", "link", "add", "hub", "type", "bridge"])
            _run([*entering(hub), "ip", "link", "set", "hub", "up"])
            holders = tuple(_hold(stack) for _ in range(count))
            addresses = tuple(f"192.0.2.{place + 1}" for place in range(count))
            for place, (holder, address) in enumerate(zip(holders, addresses, strict=True)):
                spoke = f"spoke{place}"
                end = ("name", INTERFACE, "netns", str(holder))
                peer = ("name", spoke, "netns", str(hub))
                _run(["ip", "link", "add", *end, "type", "veth", "peer", *peer])
                _run([*entering(hub), "ip", "link", "set", spoke, "master", "hub", "up"])
                _set_up(holder, address)
        except (OSError, RunError) as error:
            raise UnavailableError(f"no network namespaces: {error}") from None
        yield Star(holders, addresses)


def _hold(stack: contextlib.ExitStack) -> int:
    """Return the pid of a process in its own network namespace. It ends when its input does."""
    holder = subprocess.Popen(
        ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    stack.enter_context(holder)  # closes its input and waits for it
    own = Path(f"/proc/{holder.pid}/ns/net")
    here = Path("/proc/self/ns/net").readlink()

    def apart() -> bool:
        if holder.poll() is not None:
            assert holder.stderr is not None
            raise RunError(holder.stderr.read().decode().strip())
        return own.readlink() != here

    if not wait_until(apart, _START):
        raise RunError(f"unshare made no namespace within {_START:.0f} s")
    return holder.pid


def _lay(laid: Cable) -> None:
    first, second = laid.holders
    ends = ("name", INTERFACE, "netns", str(first)), ("name", INTERFACE, "netns", str(second))
    _run(["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]])
    for holder, address in zip(laid.holders, laid.addresses, strict=True):
        _set_up(holder, address)


def _set_up(holder: int, address: str) -> None:
    inside = [*entering(holder), "ip"]
    _run([*inside, "address", "add", f"{address}/24", "dev", INTERFACE])
    _run([*inside, "link", "set", INTERFACE, "up"])
    _run([*inside, "link", "set", "lo", "up"])
    _run([*inside, "route", "replace", _NETWORK, "dev", INTERFACE, "congctl", "cubic"])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_START)
    if done.returncode:
        raise RunError(f"{' '.join(command)}: {done.stderr.strip()}")
