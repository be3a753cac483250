"""The YAML file of --config: what it asks for, each text with its line.

Scalars are taken as they are written and mean what they would on the command line: `nnodes: 1:2`
is not a number in base 60, nor is `lr: 1e-3` a text. YAML's types only tell booleans and null.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from torsh_runtime.contract import ALL_VARIABLES
from torsh_runtime.errors import ConfigError
from torshrun.config.options import BY_NAME, Option
from torshrun.config.request import TARGETS, Entry, Given, Request, Section
from torshrun.config.values import nearest

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, ScalarNode, SequenceNode

    Node = ScalarNode | SequenceNode | MappingNode
    Pair = tuple[ScalarNode, Node]

LARGEST = 256 * 1024
"""Bytes; a file of that size is not a job's configuration."""
_NULL = "tag:yaml.org,2002:null"
_BOOLEAN = "tag:yaml.org,2002:bool"
_MOST_ITEMS = 10_000
_OTHER_KEYS = (*TARGETS, "arguments", "environment", "cluster")


def read(path: str) -> Request:
    """Read the file; ConfigError says in which line what is wrong, and what is allowed."""
    return _Reader(path).request(_compose(path, _text(path)))


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read the configuration file {path}: {reason}") from None
    if len(content) > LARGEST:
        raise ConfigError(f"{path} has more than {LARGEST // 1024} KiB: no configuration file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{number}: not text in UTF-8") from None


def _compose(path: str, text: str) -> Node | None:
    import yaml

    try:
        return cast("Node | None", yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else path
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{place}: not YAML: {what}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        first = str(error).partition("\n")[0]  # odd characters and escapes, deep nesting
        raise ConfigError(f"{path}: not YAML: {first}") from None


class _Reader:
    """Knows the file's name, for the errors."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._num_items = 0

    def request(self, root: Node | None) -> Request:
        pairs = self._by_name(root) if root is not None else {}
        environment = pairs.pop("environment", None)
        arguments = pairs.pop("arguments", None)
        cluster = pairs.pop("cluster", None)
        key, target = self._target(pairs)
        if arguments and target is None:
            self._fail(arguments[0], "arguments need a script, module or program in the same file")
        entries = {name: self._entry(BY_NAME[name], *pair) for name, pair in pairs.items()}
        if target and TARGETS[key]:
            entries[TARGETS[key]] = Entry("true", target.origin, target.name)
        return Request(
            entries=entries,
            target=target,
            arguments=self._arguments(*arguments) if arguments else (),
            environment=self._environment(environment[1]) if environment else {},
            cluster=self._cluster(cluster[1]) if cluster else {},
        )

    def _fail(self, node: Node, text: str) -> NoReturn:
        raise ConfigError(f"{self._path}:{_line(node)}: {text}")

    def _pairs(self, node: Node, what: str) -> list[Pair]:
        """Return a mapping's keys and values; its keys are scalars, and each occurs once."""
        if node.id != "mapping":
            self._fail(node, f"{what} must be a mapping (key: value), not {_kind(node)}")
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if key.id != "scalar":
                self._fail(key, f"a key must be a word, not {_kind(key)}")
            if key.value in lines:
                self._fail(key, f"{key.value} stands in line {lines[key.value]} already")
            lines[key.value] = _line(key)
        return cast("list[Pair]", node.value)

    def _by_name(self, root: Node) -> dict[str, Pair]:
        """Return the pairs by the option's key, or one of _OTHER_KEYS."""
        named: dict[str, Pair] = {}
        for key, node in self._pairs(root, "the file"):
            earlier, _ = named.setdefault(self._canonical(key), (key, node))
            if earlier is not key:
                same = f"{key.value} says the same as {earlier.value} in line {_line(earlier)}"
                self._fail(key, same)
        return named

    def _canonical(self, key: ScalarNode) -> str:
        name = str(key.value).replace("-", "_")
        if name in _OTHER_KEYS:
            return name
        if name not in BY_NAME:
            known = (*_OTHER_KEYS, *(name for name, option in BY_NAME.items() if option.in_file))
            self._fail(key, f"there is no option {key.value}{nearest(name, known)}")
        if not BY_NAME[name].in_file:
            self._fail(key, f"{key.value} belongs on the command line, not in a file")
        return BY_NAME[name].key

    def _target(self, pairs: dict[str, Pair]) -> tuple[str, Entry | None]:
        """Return the key that names the target, and the target. Remove it from the pairs."""
        found = [name for name in TARGETS if name in pairs]
        if len(found) > 1:
            self._fail(pairs[found[1]][0], f"{found[0]} and {found[1]} exclude each other")
        if not found:
            return "", None
        key, node = pairs.pop(found[0])
        return found[0], self._given(key, self._plain(key, node))

    def _arguments(self, key: ScalarNode, node: Node) -> tuple[Entry, ...]:
        if node.id != "sequence":
            self._fail(key, f"arguments must be a list, like [--epochs, 3], not {_kind(node)}")
        return tuple(self._given(key, self._scalar(key, item), item) for item in node.value)

    def _environment(self, node: Node) -> dict[str, Entry]:
        variables: dict[str, Entry] = {}
        for name, value in self._pairs(node, "environment"):
            if not name.value or set(name.value) & set("=\0"):
                self._fail(name, f"{name.value!r} cannot be a variable's name")
            if name.value in ALL_VARIABLES:
                self._fail(name, f"{name.value} is set by torshrun, for each worker")
            variables[name.value] = self._given(name, self._scalar(name, value))
        return variables

    def _cluster(self, node: Node) -> Section:
        """Return a section with any keys, of two levels: no alias can form a cycle."""
        section: dict[str, Given | dict[str, Given]] = {}
        for name, (key, value) in self._named(node, "cluster").items():
            if value.id != "mapping":
                section[name] = self._texts(key, value)
            else:
                below = self._named(value, key.value).items()
                section[name] = {each: self._texts(*pair) for each, pair in below}
        return section

    def _named(self, node: Node, what: str) -> dict[str, Pair]:
        """Return a mapping's keys and values, by the keys' names with _ for -."""
        named: dict[str, Pair] = {}
        for key, value in self._pairs(node, what):
            earlier, _ = named.setdefault(key.value.replace("-", "_"), (key, value))
            if earlier is not key:
                self._fail(key, f"{key.value} stands in line {_line(earlier)} already")
        return named

    def _texts(self, key: ScalarNode, node: Node) -> Given:
        if node.id == "sequence":
            self._num_items += len(node.value)  # an alias repeats them all
            if self._num_items > _MOST_ITEMS:
                self._fail(key, f"cluster has more than {_MOST_ITEMS} values in lists")
            return tuple(self._given(key, self._scalar(key, item), item) for item in node.value)
        return self._given(key, None if node.tag == _NULL else self._scalar(key, node))

    def _entry(self, option: Option, key: ScalarNode, node: Node) -> Entry:
        kind = option.kind
        if node.id == "sequence" and kind.is_list:
            items = (self._scalar(key, item).replace(",", ",,") for item in node.value)
            return self._given(key, ",".join(items))
        if node.id == "mapping" and kind.pairs:
            pairs = self._pairs(node, key.value)
            items = (
                f"{name.value}{kind.pairs}{self._scalar(name, value)}" for name, value in pairs
            )
            return self._given(key, ",".join(items))
        if node.id != "scalar":
            more = " or a list" if kind.is_list else " or a mapping" if kind.pairs else ""
            wanted = "true or false" if option.is_flag else f"{option.metavar}{more}"
            self._fail(key, f"{key.value}: {_kind(node)} is not possible, give {wanted}")
        if node.tag == _NULL:
            return self._given(key, option.default)
        return self._given(key, node.value if option.is_flag else self._plain(key, node))

    def _plain(self, key: ScalarNode, node: Node) -> str:
        """Return a scalar that is not a boolean.

        `role: no` is more often a mistake than intended.
        """
        text = self._scalar(key, node)
        if node.tag == _BOOLEAN:
            self._fail(key, f'{key.value}: {text} is a boolean here; write "{text}" for the text')
        return text

    def _scalar(self, key: ScalarNode, node: Node) -> str:
        if node.id != "scalar":
            self._fail(key, f"{key.value}: a text or a number is wanted, not {_kind(node)}")
        if node.tag == _NULL:
            self._fail(key, f'{key.value} has no value; write "{node.value}" if that is meant')
        text: str = node.value
        fits = False
        with suppress(UnicodeEncodeError):
            fits = b"\0" not in os.fsencode(text)
        if not fits:
            self._fail(key, f"{key.value}: {text!r} contains what no command line can")
        return text

    def _given(self, key: ScalarNode, text: str | None, node: Node | None = None) -> Entry:
        origin = f"{self._path}:{_line(node or key)}"
        return Entry(text, origin, f"{origin}: {key.value}")


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _kind(node: Node) -> str:
    if node.id == "scalar":
        return "nothing" if node.tag == _NULL else repr(node.value)
    return "a list" if node.id == "sequence" else "a mapping"
