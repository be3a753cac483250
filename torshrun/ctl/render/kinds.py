"""Parses the values of a job file's `cluster` section. Pure.

Each ConfigError says what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.config import values

_LABEL_VALUE = "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_QUALIFIED = rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL_VALUE}"
"""A pattern for names of labels, annotations, taints and resources."""
_LONGEST_NAME = 253 + 1 + 63
_QUANTITY = "[0-9]{1,15}(?:[.][0-9]{1,3})?(?:[KMGTPE]i|[kMGTPEm])?"
_EFFECTS = "NoSchedule|PreferNoSchedule|NoExecute"


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9./_][A-Za-z0-9._:/@+=,-]{0,254}", text):
        raise ConfigError(f"{text!r} is not one word of letters, digits and . _ : / @ + = , -")
    return text


def _label(text: str) -> str:
    """Check a name that Kubernetes, DNS and the clouds all accept."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", text):
        raise ConfigError(
            f"{text!r} is not a name of at most 40 lowercase letters, digits and -, from a letter "
            f"to a letter or digit"
        )
    return text


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ConfigError(f"{text!r} is not one line of printable characters")
    return text


def _name(text: str) -> str:
    """Check the name of a Kubernetes object that exists already."""
    if not re.fullmatch("[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?", text):
        raise ConfigError(
            f"{text!r} is not a name of at most 63 lowercase letters, digits, - and ., with a "
            f"letter or digit at both ends"
        )
    return text


def _pair(text: str, what: str, name: str, value: str) -> tuple[str, str]:
    found = re.fullmatch(rf"({name})=({value})", text)
    if found is None or len(found[1]) > _LONGEST_NAME:
        raise ConfigError(f"{text!r} is not {what}")
    return found[1], found[2]


def _label_pair(text: str) -> tuple[str, str]:
    return _pair(text, "NAME=VALUE, as labels are", _QUALIFIED, f"(?:{_LABEL_VALUE})?")


def _annotation(text: str) -> tuple[str, str]:
    return _pair(_line(text), "NAME=VALUE, as annotations are", _QUALIFIED, ".*")


def _resource(text: str) -> tuple[str, str]:
    return _pair(
        text, "NAME=QUANTITY, like rdma/hca=1 or ephemeral-storage=10Gi", _QUALIFIED, _QUANTITY
    )


def _toleration(text: str) -> Mapping[str, str]:
    found = re.fullmatch(rf"({_QUALIFIED})(?:=({_LABEL_VALUE}))?(?::({_EFFECTS}))?", text)
    if found is None or len(found[1]) > _LONGEST_NAME:
        raise ConfigError(
            f"{text!r} is not a taint like nvidia.com/gpu, gpu:NoSchedule or gpu=yes:NoExecute"
        )
    name, value, effect = found.groups()
    toleration = {"key": name, "operator": "Exists" if value is None else "Equal"}
    toleration |= {} if value is None else {"value": value}
    return toleration | ({} if effect is None else {"effect": effect})


def _shell(text: str) -> str:
    return values.words(text).strip("\n")


def _seconds(text: str) -> int:
    number = values.seconds(text)
    if number < 1:
        raise ConfigError(f"{text!r} is less than a second")
    return round(number)


def _positive(text: str) -> int:
    number = values.count(text)
    if number < 1:
        raise ConfigError(f"{number} is not possible: leave the key out, or give 1 or more")
    return number


def _size(text: str) -> int:
    number = values.size(text)
    if number < 1:
        raise ConfigError(f"{text!r} is less than a byte: leave the key out, or give more")
    return number


def _port(text: str) -> int:
    number = values.port(text)
    if number < 1024:
        raise ConfigError(f"{number} is not possible: ports below 1024 are root's")
    return number


def _members(text: str) -> int:
    return int(values.one_of("0", "1", "3", "5")(text))


KINDS: Mapping[str, Callable[[str], Any]] = {
    "0|1|3|5": _members,
    "FLAG": values.flag,
    "LABEL": _label,
    "N": _positive,
    "N>=0": values.count,
    "N|MIN:MAX": values.nodes,
    "NAME": _name,
    "PORT": _port,
    "SECONDS": _seconds,
    "SHELL": _shell,
    "SIZE": _size,
    "WORD": _word,
}
"""Parsers of single values, by the kind in the table of keys."""
LISTS: Mapping[str, Callable[[str], Any]] = {
    "ANNOTATIONS": _annotation,
    "LABELS": _label_pair,
    "LINES": _line,
    "RESOURCES": _resource,
    "TAINTS": _toleration,
    "WORDS": _word,
}
"""Parsers of the elements of lists, by the kind in the table of keys."""
