"""The YAML file of --config: its keys and values as settings, each with its line.

Scalars are taken as they are written and mean what they would on the command line: `nnodes: 1:2`
is not a number in base 60, nor is `lr: 1e-3` a text. YAML's types only tell booleans and null.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from torsh_runtime.errors import ConfigError
from torshrun.config.option import Option
from torshrun.config.options import BY_NAME
from torshrun.config.setting import TARGETS, JobFile, Setting
from torshrun.config.values import nearest

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, ScalarNode, SequenceNode

    Node = ScalarNode | SequenceNode | MappingNode

LARGEST = 256 * 1024
"""Bytes; a file of that size is not a job's configuration."""
_TAG = "tag:yaml.org,2002:"
_Pair = tuple["ScalarNode", "Node"]


def read(path: str) -> JobFile:
    """Read the file; ConfigError says in which line what is wrong, and what is allowed."""
    return _Reader(path).job(_compose(path, _text(path)))


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
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError(f"reading {path} needs PyYAML: pip install pyyaml") from None
    try:
        return cast("Node | None", yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else path
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{place}: not YAML: {what}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None
    except (ValueError, OverflowError, RecursionError) as error:  # odd escapes, deep nesting
        raise ConfigError(f"{path}: not YAML: {error}") from None


class _Reader:
    """Knows the file's name, for the errors."""

    def __init__(self, path: str) -> None:
        self._path = path

    def job(self, root: Node | None) -> JobFile:
        pairs = self._named(self._pairs(root, "the file")) if root is not None else {}
        environment = pairs.pop("environment", None)
        target_key, target = self._target(pairs)
        arguments = self._arguments(pairs.pop("arguments", None), target)
        return JobFile(
            settings={name: self._setting(BY_NAME[name], *pair) for name, pair in pairs.items()},
            target=target,
            target_key=target_key,
            arguments=arguments,
            environment=self._environment(environment),
        )

    def _fail(self, node: Node, text: str) -> NoReturn:
        raise ConfigError(f"{self._path}:{node.start_mark.line + 1}: {text}")

    def _pairs(self, node: Node, what: str) -> list[_Pair]:
        """A mapping's keys and values; its keys are scalars, and each is there once."""
        if node.id != "mapping":
            self._fail(node, f"{what} must be a mapping (key: value), not {_kind(node)}")
        pairs: list[_Pair] = node.value
        lines: dict[str, int] = {}
        for key, _ in pairs:
            if key.id != "scalar":
                self._fail(key, f"a key must be a word, not {_kind(key)}")
            if key.value in lines:
                self._fail(key, f"{key.value} stands in line {lines[key.value]} already")
            lines[key.value] = key.start_mark.line + 1
        return pairs

    def _named(self, pairs: Iterable[_Pair]) -> dict[str, _Pair]:
        """By the option's key, or "script", "module", "program", "arguments", "environment"."""
        named: dict[str, _Pair] = {}
        for key, node in pairs:
            name = self._canonical(key)
            if name in named:
                earlier = named[name][0]
                text = f"{key.value} says the same as {earlier.value} in line"
                self._fail(key, f"{text} {earlier.start_mark.line + 1}")
            named[name] = (key, node)
        return named

    def _canonical(self, key: ScalarNode) -> str:
        name = key.value.replace("-", "_")
        if name in _OTHER_KEYS:
            return str(name)
        option = BY_NAME.get(name)
        if option is None:
            self._fail(key, f"there is no option {key.value}{nearest(name, _known())}")
        if not option.in_file:
            self._fail(key, f"{key.value} belongs on the command line, not in a file")
        return option.key

    def _target(self, pairs: dict[str, _Pair]) -> tuple[str, Setting | None]:
        found = [name for name in TARGETS if name in pairs]
        if len(found) > 1:
            key = pairs[found[1]][0]
            self._fail(key, f"{found[0]} and {found[1]} exclude each other")
        if not found:
            return "script", None
        key, node = pairs.pop(found[0])
        return found[0], self._given(key, self._plain(key, node))

    def _arguments(self, pair: _Pair | None, target: Setting | None) -> tuple[Setting, ...]:
        if pair is None:
            return ()
        key, node = pair
        if target is None:
            self._fail(key, "arguments need a script, module or program in the same file")
        if node.id != "sequence":
            self._fail(key, f"arguments must be a list, like [--epochs, 3], not {_kind(node)}")
        return tuple(self._given(key, self._scalar(key, item), item) for item in node.value)

    def _environment(self, pair: _Pair | None) -> dict[str, Setting]:
        if pair is None:
            return {}
        variables: dict[str, Setting] = {}
        for name, node in self._pairs(pair[1], "environment"):
            if not name.value or set(name.value) & set("=\0"):
                self._fail(name, f"{name.value!r} cannot be a variable's name")
            if name.value in _set_for_workers():
                self._fail(name, f"{name.value} is set by torshrun, for each worker")
            variables[name.value] = self._given(name, self._scalar(name, node))
        return variables

    def _setting(self, option: Option, key: ScalarNode, node: Node) -> Setting:
        if node.id == "sequence" and option.is_list:
            items = (self._scalar(key, item).replace(",", ",,") for item in node.value)
            return self._given(key, ",".join(items))
        if node.id == "mapping" and option.pairs:
            pairs = self._pairs(node, key.value)
            items = (f"{name.value}{option.pairs}{self._scalar(name, n)}" for name, n in pairs)
            return self._given(key, ",".join(items))
        if node.id != "scalar":
            self._fail(key, f"{key.value}: {_kind(node)} is not possible, give {_wanted(option)}")
        if node.tag == f"{_TAG}null":
            return self._given(key, option.default)
        return self._given(key, node.value if option.is_flag else self._plain(key, node))

    def _plain(self, key: ScalarNode, node: Node) -> str:
        """A scalar that is no boolean: `role: no` is more often a trap than meant."""
        text = self._scalar(key, node)
        if node.tag == f"{_TAG}bool":
            self._fail(key, f'{key.value}: {text} is a boolean here; write "{text}" for the text')
        return text

    def _scalar(self, key: ScalarNode, node: Node) -> str:
        if node.id != "scalar":
            self._fail(key, f"{key.value}: a text or a number is wanted, not {_kind(node)}")
        if node.tag == f"{_TAG}null":
            self._fail(key, f'{key.value} has no value; write "{node.value}" if that is meant')
        text: str = node.value
        if not _can_be_passed_on(text):
            self._fail(key, f"{key.value}: {text!r} contains what no command line can")
        return text

    def _given(self, key: ScalarNode, text: str | None, node: Node | None = None) -> Setting:
        origin = f"{self._path}:{(node or key).start_mark.line + 1}"
        return Setting(text, origin, f"{origin}: {key.value}")


_OTHER_KEYS = (*TARGETS, "arguments", "environment")


def _known() -> list[str]:
    """Every key that a file may have."""
    return [*_OTHER_KEYS, *(name for name, option in BY_NAME.items() if option.in_file)]


def _can_be_passed_on(text: str) -> bool:
    """Whether a process can be given it as an argument or a variable."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _kind(node: Node) -> str:
    if node.id == "scalar":
        return "nothing" if node.tag == f"{_TAG}null" else repr(node.value)
    return "a list" if node.id == "sequence" else "a mapping"


def _wanted(option: Option) -> str:
    if option.is_flag:
        return "true or false"
    more = " or a list" if option.is_list else " or a mapping" if option.pairs else ""
    return f"{option.metavar}{more}"


def _set_for_workers() -> set[str]:
    """The variables that a worker finds its place by."""
    from torsh_runtime.contract import WorkerEnv

    texts = ("store_endpoint", "secret", "error_file", "scratch", "status_file")
    filled: dict[str, Any] = {**dict.fromkeys(texts, "x"), "jax_coordinator_port": 1}
    place = WorkerEnv(rank=0, world_size=1, local_rank=0, local_world_size=1, **filled)
    return set(place.to_environ())
