"""Text to value, one function per kind of value. Pure; a ConfigError says what is allowed."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from torsh_runtime.errors import ConfigError
from torsh_runtime.store.endpoint import can_be_looked_up
from torshrun.config.job import StreamRule, Streams
from torshrun.text import parse_ranges

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names by which every host means itself."""
MOST_WORKERS = 65536
LONGEST = 1e9
"""Seconds; timers of the kernel and of Python take no more than a few times that."""

_LARGEST_RATIO = 1000.0
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
CONF_WITHOUT_EFFECT = frozenset(
    ["store_type", "read_timeout", "heartbeat_timeout", "use_libuv", "etcd_prefix", "rank"]
)
"""Keys of torchrun's --rdzv-conf that nothing here corresponds to."""
_PLACES = ("role_name", "rank", "local_rank", "hostname")
_NOT_TO_HANDLE = {
    "SIGKILL": "no process can handle it",
    "SIGSTOP": "no process can handle it",
    "SIGPIPE": "it says that a reader is gone, which ends no job",
    "SIGTSTP": "it suspends the job, as Ctrl-Z does",
    "SIGWINCH": "it tells that the terminal has another size",
    "SIGCHLD": "torshrun needs it to learn that a process ended",
}


class Nodes(NamedTuple):
    """--nnodes: at least and at most how many."""

    fewest: int
    most: int


class Endpoint(NamedTuple):
    """HOST:PORT; port None is not given, and nor is the scheme ("http" or "https") if it is ""."""

    host: str
    port: int | None
    scheme: str = ""


def nearest(word: str, words: Iterable[str], dashes: str = "") -> str:
    """Return "; did you mean …?" if one of the words resembles this one, else "".

    `dashes` are put before the word.
    """
    from difflib import get_close_matches

    candidates = list(words)
    longer = [candidate for candidate in candidates if word and candidate.startswith(word)]
    found = get_close_matches(word, candidates, 1) or longer
    return f"; did you mean {dashes}{found[0]}?" if found else ""


def whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        raise ConfigError(f"{text!r} is not a whole number")
    return int(text.strip())  # which knows more spaces than int()


def count(text: str) -> int:
    number = whole(text)
    if number < 0:
        raise ConfigError(f"{number} is negative")
    return number


def workers(text: str) -> int | str:
    """Parse a number, or "auto", "cpu" or "gpu", whose number is counted on the machine later."""
    if text in ("auto", "cpu", "gpu"):
        return text
    if text in ("xpu", "hpu", "mps"):
        raise ConfigError(f"{text!r} cannot be counted here: give a number, auto, cpu or gpu")
    try:
        number = whole(text)
    except ConfigError as error:
        raise ConfigError(f"{error}; auto, cpu and gpu are possible too") from None
    if not 1 <= number <= MOST_WORKERS:
        raise ConfigError(f"{number} is not possible: a node has 1 to {MOST_WORKERS} workers")
    return number


def nodes(text: str) -> Nodes:
    """Parse "N" or "MIN:MAX"."""
    fewest, colon, most = text.partition(":")
    try:
        asked = Nodes(whole(fewest), whole(most if colon else fewest))
    except ConfigError:
        raise ConfigError(f"{text!r} is neither a number of nodes nor MIN:MAX") from None
    if not 1 <= asked.fewest <= asked.most:
        raise ConfigError(f"{text!r} is not possible: MIN:MAX needs 1 <= MIN <= MAX")
    return asked


def port(text: str) -> int:
    number = whole(text)
    if not 0 <= number <= 65535:
        raise ConfigError(f"{number} is not a TCP port (1 to 65535, or 0 for a free one)")
    return number


def ratio(text: str) -> float:
    """Parse 0, or a factor greater than 1."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if number != 0 and not 1 < number <= _LARGEST_RATIO:
        raise ConfigError(f"{text!r} is neither 0 nor a number more than 1, such as 1.2")
    return number


def seconds(text: str) -> float:
    """Parse a number of seconds, or one with a unit: 500ms, 90s, 5m, 1h, 2d."""
    match = re.fullmatch(
        r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+\.)\s*(|ms|[smhd])", text.strip()
    )
    number = float(match[1]) * _UNITS[match[2]] if match else math.nan
    if not 0 <= number <= LONGEST:
        raise ConfigError(f"{text!r} is not a number of seconds >= 0 (nor like 90s, 5m or 1h)")
    return number


def size(text: str) -> int:
    """Parse a number of bytes: 1000, 100M and 100MiB (powers of 1024), 100MB (powers of 1000)."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b)?", text.strip().lower())
    if match is None or len(match[1]) > 18:
        raise ConfigError(f"{text!r} is not a size: give bytes, or like 100M, 1GiB or 1GB")
    base = 1000 if match[3] == "b" else 1024
    return int(float(match[1]) * base ** _POWERS[match[2]])


def words(text: str) -> str:
    if not text.strip():
        raise ConfigError("must not be empty")
    if "\0" in text:
        raise ConfigError("must not contain a zero byte")
    return text


def role(text: str) -> str:
    """Parse a role. An empty one, which TorchX gives, is the default: workers need a name."""
    return words(text or "default")


def template(text: str) -> str:
    """Check a template for the beginning of output lines, with _PLACES; "" is nothing."""
    from string import Template

    if re.search(r"[\0\r\n]", text):
        raise ConfigError(f"{text!r} is more than one line")
    allowed = ", ".join(f"${{{name}}}" for name in _PLACES)
    if not Template(text).is_valid():
        raise ConfigError(
            f"{text!r} has a $ without a name: write $$ for a dollar sign, or one of {allowed}"
        )
    for name in Template(text).get_identifiers():
        if name not in _PLACES:
            raise ConfigError(f"{text!r} has ${{{name}}}: use {allowed}")
    return text


def host(text: str) -> str:
    """Parse a name or an address; an IPv6 address may be in brackets."""
    name = words(text).strip()
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if not re.fullmatch(r"[\w.:%-]+", name) or not can_be_looked_up(name):
        raise ConfigError(f"{text!r} is not a host's name or address")
    return name


def endpoints(text: str) -> tuple[Endpoint, ...]:
    """Parse HOST[:PORT], several separated by commas. "" is none."""
    return tuple(_place(part) for part in text.split(",")) if text.strip() else ()


def _place(text: str) -> Endpoint:
    found = re.fullmatch(r"(?:(https?)://)?(.*)", text.strip(), re.DOTALL)
    scheme, bare = found.groups("") if found else ("", "")
    name, colon, number = bare.rpartition(":")
    if not colon or number.endswith("]"):
        return Endpoint(host(bare), None, scheme)
    try:
        return Endpoint(host(name), port(number), scheme)
    except ConfigError as error:
        raise ConfigError(f"{text!r} is not HOST:PORT: {error}") from None


def listening(text: str) -> tuple[str, int]:
    """Parse [HOST:]PORT; a port alone is only for this host, ":PORT" is on every address."""
    name, colon, number = text.rpartition(":")
    if not colon:
        return "127.0.0.1", port(number)
    return (host(name) if name else ""), port(number)


def url_or_env(text: str) -> str:
    """Parse "env", or a URL of http or https without a slash at its end."""
    return text if text == "env" else url(text)


def url(text: str) -> str:
    match = re.fullmatch(r"https?://([^/?#@\s]+)(/[!-~]*)?", text)
    if match is None or re.search(r"[?#]", text):
        raise ConfigError(
            f"{text!r} is not a URL like http://collector:4318 or https://host/path (without a "
            f"name and a password: see OTEL_EXPORTER_OTLP_HEADERS)"
        )
    name, colon, number = match[1].rpartition(":")
    if not colon or number.endswith("]"):
        host(match[1])
    elif host(name) and not port(number) >= 1:
        raise ConfigError(f"{text!r} has port 0, at which nobody serves")
    return text.rstrip("/")


def flag(text: str) -> bool:
    word = text.strip().lower()
    try:
        return _FLAGS[word] if word in _FLAGS else bool(whole(word))
    except ConfigError:
        raise ConfigError(f"{text!r} is neither true nor false (nor 1 or 0)") from None


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            hint = nearest(text, allowed)
            raise ConfigError(f"{text!r} is not one of {', '.join(allowed)}{hint}")
        return text

    return parse


def readable(text: str) -> str:
    if not _looked_up(text).is_file():
        raise ConfigError(f"there is no file {text}")
    return text


def directory(text: str) -> str:
    path = _looked_up(text)
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is not a directory")
    return str(path)


def file_or_dash(text: str) -> str:
    """Check a file that can be made or added to; "-" is stdout."""
    if text == "-":
        return text
    path = _looked_up(text)
    if path.is_dir():
        raise ConfigError(f"{path} is a directory, not a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no directory {path.parent}")
    return str(path)


def _looked_up(text: str) -> Path:
    """Return the path, which need not exist. Raise ConfigError if it cannot be looked up."""
    path = Path(words(text)).absolute()
    try:
        path.exists()
    except OSError as error:  # too long a name, a place one may not look at
        raise ConfigError(f"{path} cannot be used: {error.strerror}") from None
    return path


def phrases(text: str) -> tuple[str, ...]:
    """Split at commas; a double comma is a comma. "" is none."""
    if not text:
        return ()
    return tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))


def modules(text: str) -> tuple[str, ...] | Literal["auto"]:
    """Parse names of modules between commas, "none", or "auto"."""
    if text == "auto":
        return "auto"
    if text == "none":
        return ()
    names = tuple(text.split(","))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"{name!r} is no module's name; give auto, none or torch,numpy")
    return names


def count_or_auto(text: str) -> int | Literal["auto"]:
    """Parse a number that is not negative, or "auto"."""
    return "auto" if text == "auto" else count(text)


def ranks(text: str) -> frozenset[int] | None:
    """Parse numbers and ranges, "0,2,4-7"; "" is None."""
    try:
        return frozenset(parse_ranges(text)) or None
    except ValueError:
        raise ConfigError(f"{text!r} is not a list of ranks like 0,2,4-7") from None


def stream_rule(text: str) -> StreamRule:
    """Parse "3" for all workers, "0:1,1:2" by local rank, "r8:3" by global rank."""
    if found := re.fullmatch(r"\s*([0-3])\s*", text):
        return StreamRule(everyone=Streams(int(found[1])))
    by_local_rank: dict[int, Streams] = {}
    by_rank: dict[int, Streams] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(r?)([0-9]{1,6})\s*:\s*([0-3])\s*", part)
        if match is None:
            raise ConfigError(
                f"{text!r} is not possible: give 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), "
                f"or that by local rank (0:1,1:2) or by rank (r8:3)"
            )
        rules = by_rank if match[1] else by_local_rank
        streams = Streams(int(match[3]))
        if rules.setdefault(int(match[2]), streams) != streams:
            raise ConfigError(f"{text!r} names {match[1]}{match[2]} twice")
    return StreamRule(
        by_local_rank=MappingProxyType(by_local_rank), by_rank=MappingProxyType(by_rank)
    )


def signals(text: str) -> tuple[signal.Signals, ...]:
    """Parse names of signals separated by commas, with or without SIG."""
    return tuple(dict.fromkeys(_signal(part.strip().upper()) for part in text.split(",")))


def _signal(word: str) -> signal.Signals:
    name = word if word.startswith("SIG") else f"SIG{word}"
    if name in _NOT_TO_HANDLE:
        raise ConfigError(f"{name} is not possible: {_NOT_TO_HANDLE[name]}")
    try:
        return signal.Signals[name]
    except KeyError:
        hint = nearest(name, signal.Signals.__members__)
        raise ConfigError(f"{word!r} is not a signal's name{hint}") from None


def rdzv_backend(text: str) -> str:
    """Parse the name of a backend; explain to users of torch's handlers what it cannot be."""
    if text == "etcd-v2":
        raise ConfigError("'etcd-v2' is not possible: torshrun speaks etcd's version 3, give etcd")
    allowed = ("static", "c10d", "tcp", "etcd")
    if text not in allowed:
        from importlib.metadata import entry_points

        if entry_points(group="torchrun.handlers", name=text):
            raise ConfigError(
                f"{text!r} is a rendezvous handler for torchrun's agents (an entry point in the "
                f"group torchrun.handlers), by which torshrun's cannot meet: give c10d, etcd or "
                f"static"
            )
    return one_of(*allowed)(text)


def rdzv_conf(text: str) -> Mapping[str, Any]:
    """Parse "key=value,key=value"; each value as its key requires."""
    conf: dict[str, Any] = {}
    for part in text.split(",") if text.strip() else ():
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not key or not value:
            raise ConfigError(f"{part.strip()!r} is not KEY=VALUE")
        if key not in _CONF and key not in CONF_WITHOUT_EFFECT:
            known = f"the keys are {', '.join(_CONF)}{nearest(key, _CONF)}"
            raise ConfigError(f"there is no key {key!r}; {known}")
        try:
            conf[key] = _CONF.get(key, words)(value)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from None
    return MappingProxyType(conf)


_CONF: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("join_timeout", "last_call_timeout", "close_timeout"), seconds),
    "is_host": flag,
    **dict.fromkeys(("keep_alive_interval", "ttl", "timeout"), seconds),
    "keep_alive_max_attempt": count,
    "protocol": one_of("http", "https"),
    **dict.fromkeys(("cacert", "cert", "key", "ca_cert", "ssl_cert", "ssl_cert_key"), readable),
}
"""The keys of --rdzv-conf, and what each one's value is."""
