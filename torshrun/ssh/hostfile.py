"""Parses lists of hosts, and selects those that are wanted. Pure; every error names its line.

The formats are those of DeepSpeed (host slots=4), Open MPI (host slots=4 max_slots=8) and MPICH
(host:4), with user@host, port=2222 and IPv6 addresses, which are written in brackets before a
colon:

    line = [[user "@"] host [":" slots] {" " ("slots" | "max_slots" | "port") "=" number}] ["#" …]
    host = name | IPv4 address | IPv6 address | "[" IPv6 address "]"
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torsh_runtime.errors import ConfigError
from torsh_runtime.store.endpoint import can_be_looked_up
from torshrun.config.values import MOST_WORKERS
from torshrun.text import parse_ranges

_HERE = ("localhost", "127.0.0.1", "::1")
_WANTED = "a host's name or address, like node1, node1:4 (slots), me@node1, 10.0.0.7 or [fd77::7]:4"
_USER = re.compile(r"[\w.+\\][\w.+\\-]*")
"""Names without special characters of shells: ssh's configuration may pass them to one."""
_MOST = {"slots": MOST_WORKERS, "max_slots": MOST_WORKERS, "port": 65535}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Holds one line of the file."""

    name: str
    """A name (which ssh's configuration may define) or an address, IPv6 without brackets."""
    place: str
    """The position in the file, for errors: "hosts.txt:3"."""
    user: str = ""
    """The user to log in as. Empty leaves that to ssh."""
    port: int = 0
    """The port of its sshd. 0 leaves that to ssh."""
    slots: int = 0
    """The number of workers that it is meant to have. 0 is not given."""
    max_slots: int = 0
    """The most workers that it may have. 0 is not given."""
    chosen: tuple[int, ...] = ()
    """The slots that were selected by number. () is all."""
    label: str = ""
    """The prefix of lines of its output."""

    @property
    def is_here(self) -> bool:
        """Return whether it is this host, which needs no ssh."""
        return self.identity == _HERE[0] and not self.user and not self.port

    @property
    def identity(self) -> str:
        """Return a spelling of its name or address that is the same for all spellings."""
        name = _ip(self.name) or self.name.lower().removesuffix(".")
        return _HERE[0] if name in _HERE else name

    @property
    def address(self) -> str:
        """Return the address in the form that ssh takes."""
        return f"{self.user}@{self.name}" if self.user else self.name


def parse(text: str, name: str) -> tuple[Host, ...]:
    """Return the hosts of a file of that name, in its order. Raises ConfigError."""
    hosts = [
        _host(words, f"{name}:{number}")
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1)
        if (words := line.partition("#")[0].split())
    ]
    if not hosts:
        raise ConfigError(f"{name} lists no host: give one a line, like node1 slots=4")
    seen: dict[tuple[str, int], Host] = {}
    for host in hosts:
        first = seen.setdefault((host.identity, host.port), host)
        if first is not host:
            raise ConfigError(
                f"{host.place}: {host.name} is already listed at {first.place}"
                f"{'' if first.name == host.name else f' as {first.name}'}: name each host once, "
                f"with slots=N for N workers"
            )
    common = Counter(host.name for host in hosts)
    return tuple(replace(host, label=_label(host, common[host.name])) for host in hosts)


def select(hosts: Sequence[Host], include: str, exclude: str) -> tuple[Host, ...]:
    """Return the selected hosts, in the file's order.

    `include` and `exclude` are like node1@node2:0,2 (all of node1, slots 0 and 2 of node2). An
    empty text selects nothing. Raises ConfigError.
    """
    if include and exclude:
        raise ConfigError("--include and --exclude exclude each other: give one of them")
    wanted = _named(include or exclude, hosts)
    chosen = []
    for host in hosts:
        slots = wanted.get(host.label)
        if include and slots is not None:
            chosen.append(replace(host, chosen=slots))
        elif not include and slots is None:
            chosen.append(host)
        elif not include and slots and (left := _others(host, slots)):
            chosen.append(replace(host, chosen=left))
    if not chosen:
        raise ConfigError(f"--exclude {exclude} leaves no host")
    return tuple(chosen)


def _host(words: Sequence[str], place: str) -> Host:
    user, at, rest = words[0].rpartition("@")
    name, after_colon = _name_and_slots(rest)
    if not name or (at and not _USER.fullmatch(user)):
        raise ConfigError(f"{place}: {words[0]!r} is not {_WANTED}")
    given = dict(_settings(words[1:], place))
    if after_colon is not None:
        if "slots" in given:
            raise ConfigError(f"{place}: the number of slots is given twice")
        given["slots"] = _number("slots", after_colon, place)
    port, slots, most = (given.get(key, 0) for key in ("port", "slots", "max_slots"))
    if 0 < most < slots:
        raise ConfigError(f"{place}: max_slots={most} is less than the {slots} slots given there")
    return Host(name=name, user=user, place=place, port=port, slots=slots, max_slots=most)


def _name_and_slots(text: str) -> tuple[str, str | None]:
    """Return the name, which is empty if it is invalid, and the slots, or None without any."""
    if found := re.fullmatch(r"\[(.*)\](?::(.*))?", text):
        return (found[1] if ":" in _ip(found[1]) else ""), found[2]
    if text.count(":") > 1:
        return (text if _ip(text) else ""), None
    name, colon, slots = text.partition(":")
    return (name if _is_name(name) else ""), slots if colon else None


def _is_name(text: str) -> bool:
    """Return whether it is a host name, or a valid IPv4 address if it has only digits and dots."""
    if re.fullmatch(r"[0-9.]+", text):
        return bool(_ip(text))
    is_plain = re.fullmatch(r"[\w.-]+", text) and not text.startswith("-")
    return bool(is_plain) and can_be_looked_up(text)


def _ip(text: str) -> str:
    """Return the address in its usual spelling, or "" if it is none."""
    try:  # ipaddress accepts any characters after the % of an IPv6 address
        return str(ipaddress.ip_address(text)) if re.fullmatch(r"[\w.:%-]+", text) else ""
    except ValueError:
        return ""


def _label(host: Host, so_called: int) -> str:
    """Return its name, with its port if several hosts have that name."""
    return f"{host.name}:{host.port}" if so_called > 1 and host.port else host.name


def _settings(words: Sequence[str], place: str) -> Iterator[tuple[str, int]]:
    seen = set()
    for word in words:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if not equals or key not in _MOST:
            raise ConfigError(f"{place}: {word!r} is not slots=N, max_slots=N or port=N")
        if key in seen:
            raise ConfigError(f"{place}: {key} is given twice")
        seen.add(key)
        yield key, _number(key, value, place)


def _number(key: str, text: str, place: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= _MOST[key]:
        raise ConfigError(f"{place}: {key} is a number from 1 to {_MOST[key]}, not {text!r}")
    return int(text)


def _named(text: str, hosts: Sequence[Host]) -> dict[str, tuple[int, ...]]:
    """Return the slots by label. () is all of them."""
    by_label = {host.label: host for host in hosts}
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split("@") if text else ():
        label, colon, numbers = (part, "", "") if part in by_label else part.rpartition(":")
        host = by_label.get(label)
        if host is None:
            names = ", ".join(list(by_label)[:8]) + (", …" if len(by_label) > 8 else "")
            raise ConfigError(f"{part!r} is not a host of the file: it lists {names}")
        if label in found:
            raise ConfigError(f"{label} is named twice")
        found[label] = _slots(host, numbers) if colon else ()
    return found


def _slots(host: Host, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted(parse_ranges(text)))
    except ValueError:
        numbers = ()
    if not numbers:
        raise ConfigError(f"{host.label}:{text} is not a list of slots like {host.label}:0,2")
    if numbers[-1] >= host.slots:
        has = f"slots 0 to {host.slots - 1}" if host.slots else "no slots=N"
        raise ConfigError(f"{host.label} has no slot {numbers[-1]}: {host.place} gives it {has}")
    return numbers


def _others(host: Host, slots: Sequence[int]) -> tuple[int, ...]:
    return tuple(slot for slot in range(host.slots) if slot not in slots)
