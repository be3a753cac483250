"""Reads a DeepSpeed configuration, and checks each key of it against the table."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.deepspeed.keys import REFUSED, Fate, Keys
from torsh_runtime.integrations.deepspeed.keys_of_others import OTHERS
from torsh_runtime.integrations.deepspeed.keys_of_training import TRAINING
from torsh_runtime.integrations.deepspeed.keys_of_zero import ZERO

TABLE: tuple[Keys, ...] = (*TRAINING, *ZERO, *OTHERS)
"""The keys of DeepSpeed's configuration."""
AUTO = "auto"
"""The value that a reader of the configuration fills in."""
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "num": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "a string"),
    "list": ((list, tuple), "a list"),
    "dict": ((Mapping,), "an object {…}"),
    "dict|bool": ((Mapping, bool), "an object {…}"),
}


def read(path: str | Path) -> dict[str, Any]:
    """Return the configuration in a file.

    Raises ConfigError for a file that cannot be read, is no JSON object or has a key twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the DeepSpeed configuration {str(path)!r} cannot be read: {error}"
        ) from None
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the DeepSpeed configuration {str(path)!r} is no JSON: {error}"
        ) from None
    if not isinstance(found, dict):
        raise ConfigError(
            f"the DeepSpeed configuration {str(path)!r} must be an object {{…}}, and not "
            f"{_shown(found)}"
        )
    return found


def with_values(given: Mapping[str, Any], auto: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy in which the values of `auto`, by dotted paths, replace "auto".

    Raises ConfigError for a path where the configuration does not say "auto", and for values that
    JSON cannot represent.
    """
    values = json.loads(json.dumps(given)) if _is_plain(given) else _refuse_values(given)
    for path, value in auto.items():
        *sections, name = path.split(".")
        place = values
        for section in sections:
            place = place.get(section, {}) if isinstance(place, dict) else {}
        if not isinstance(place, dict) or place.get(name) != AUTO:
            raise ConfigError(f'auto has a value for {path!r}, which is not "auto" in the file')
        place[name] = value
    return dict(values)


def check(values: Mapping[str, Any]) -> None:
    """Raise ConfigError naming each key that is unknown, of a wrong type or refused."""
    problems = [*_problems(values, "", "")]
    if problems:
        raise ConfigError(
            "the DeepSpeed configuration cannot be used: "
            + "; ".join(problems)
            + ". See the table in docs/deepspeed.md"
        )


def without_effect(values: Mapping[str, Any]) -> list[str]:
    """Return the dotted paths of the given keys that have no effect."""
    return [
        path
        for path, entry in _entries(values, "", "")
        if entry is not None and entry.fate is Fate.NO_EFFECT
    ]


def asks(value: Any, entry: Keys) -> bool:
    """Return whether the value of a refused key turns the refused feature on."""
    if isinstance(value, Mapping):
        switches = [*_switches(value)]
        return any(switches) if switches else bool(value)
    is_switch = isinstance(value, bool)  # True must not match 1
    return not any(value == i and isinstance(i, bool) is is_switch for i in entry.idle)


def _entries(
    values: Mapping[str, Any], path: str, section: str
) -> Iterator[tuple[str, Keys | None]]:
    """Yield each key of the values and their sections with its entry; None if it is unknown."""
    for name, value in values.items():
        entry = _find(section, name)
        yield path + name, entry
        inner = _inner(section, name)
        if entry is not None and isinstance(value, Mapping) and inner is not None:
            yield from _entries(value, f"{path}{name}.", inner)


def _problems(values: Mapping[str, Any], path: str, section: str) -> Iterator[str]:
    for name, value in values.items():
        title, entry = path + name, _find(section, name)
        if entry is None:
            yield f"{title} is no key of it{_nearest(section, name)}"
            continue
        kind = entry.kinds().get(name, "any")
        if not _fits(value, kind):
            wanted = _KINDS[kind.removesuffix("?")][1]
            yield f"{title} must be {wanted}, not {_shown(value)}"
        elif entry.fate is REFUSED and value != AUTO and asks(value, entry):
            yield f"{title} is refused ({entry.why.rstrip('.')})"
        inner = _inner(section, name)
        if isinstance(value, Mapping) and inner is not None:
            # A refused section is named once.
            nested = [*_problems(value, f"{title}.", inner)]
            yield from (each for each in nested if entry.fate is not REFUSED or "no key" in each)


def _find(section: str, name: str) -> Keys | None:
    """Return the entry of a key. `section` is the table's name of a section."""
    for entry in TABLE:
        if entry.section == section and (not entry.names or name in entry.kinds()):
            return entry
    is_closed = any(entry.section == section for entry in TABLE)
    if not is_closed and _inner(section, name) is not None:  # such as a group of modules
        return next(each for each in TABLE if each.section.startswith(_above(section)))
    return Keys(section, "", Fate.USED, "") if section in _OPEN else None


_OPEN = ("optimizer.params", "scheduler.params")
"""Sections whose further keys are checked when the object itself is made."""


def _above(section: str) -> str:
    return f"{section}." if section else ""


def _inner(section: str, name: str) -> str | None:
    """Return the table's name of the section below this key; None if its keys are not known."""
    for each in (_above(section) + name, f"{_above(section)}*"):
        if any(entry.section == each or entry.section.startswith(f"{each}.") for entry in TABLE):
            return each
    return None


def _nearest(section: str, name: str) -> str:
    """Return a hint naming the most similar known key, in this section or another."""
    here = [n for entry in TABLE if entry.section == section for n in entry.kinds()]
    found = difflib.get_close_matches(name, here, 1, 0.6)
    if found:
        return f" (did you mean {found[0]}?)"
    titles = (title for entry in TABLE for title in entry.titles())
    elsewhere = [title for title in titles if f".{title}".endswith(f".{name}")]
    return f" (there is {elsewhere[0]})" if elsewhere else ""


def _fits(value: Any, kind: str) -> bool:
    if kind == "any" or (kind.endswith("?") and value is None):
        return True
    kind = kind.removesuffix("?")
    if value == AUTO and kind != "dict":
        return True
    if isinstance(value, bool):
        return kind in ("bool", "dict|bool")
    if kind == "int" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS[kind][0])


def _switches(section: Mapping[str, Any]) -> Iterator[bool]:
    """Yield whether each switch in a section is on."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _switches(value)
        elif name in ("enabled", "deepcompile"):
            yield value is not None and value is not False
        elif name == "autotp_size":
            yield value not in (0, 1)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} is there twice")
        found[name] = value
    return found


def _is_plain(given: Mapping[str, Any]) -> bool:
    try:
        json.dumps(given)
    except (TypeError, ValueError):
        return False
    return True


def _refuse_values(given: Mapping[str, Any]) -> Any:
    for name, value in given.items():
        if not _is_plain({name: value}):
            raise ConfigError(
                f"the DeepSpeed configuration has in {name!r} what JSON cannot say, {value!r}"
            )
    raise ConfigError("the DeepSpeed configuration has names that are no strings")


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) < 60 else f"{text[:57]}…"
