"""Finds the layers that a model calls one after the other, and what is computed before each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.pipeline.whole.structures import is_within

Module = torch.nn.Module


class Row(NamedTuple):
    """Describes the layers at which a model can be cut."""

    layers: tuple[str, ...]
    """Names of the layers in the order of their calls."""
    carried: Mapping[str, tuple[str, ...]]
    """For each layer the modules whose outputs cross a cut before it. They are the outermost of the
    modules that have returned by then and are, or contain, layers; of members of one list only the
    last one.
    """
    after: tuple[str, ...]
    """Modules that are called after the last layer has returned."""


class _Event(NamedTuple):
    name: str
    has_returned: bool


def row_of(model: Module, call: Callable[[], object]) -> Row:
    """Return the layers of a model that `call` calls. ConfigError if it cannot be cut."""
    events: list[_Event] = []
    with _watched(model, events):
        call()
    called = Counter(each.name for each in events if not each.has_returned)
    for kind in (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential):
        members = _members(model, kind)
        layers = _outermost([name for name in called if name in members])
        once = tuple(name for name in layers if called[name] == 1)
        if len(once) > 1:
            return Row(once, _carried(once, events), _after(once[-1], events))
    raise ConfigError(
        f"{type(model).__qualname__} has no layers between which it could be cut: no members of a "
        f"ModuleList, or of a ModuleDict of one class, are called one after the other, once each. "
        f"Give it a method pipeline_layers() that names what it calls so, or pass a list of stages"
    )


@contextmanager
def _watched(model: Module, events: list[_Event]) -> Iterator[None]:
    def watch(name: str, module: Module) -> Iterator[Any]:
        def begin(*_: Any) -> None:
            events.append(_Event(name, has_returned=False))

        def end(*_: Any) -> None:
            events.append(_Event(name, has_returned=True))

        yield module.register_forward_pre_hook(begin)
        yield module.register_forward_hook(end)

    handles = [handle for each in model.named_modules() for handle in watch(*each)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _members(model: Module, kind: type[Module]) -> set[str]:
    named = model.named_modules()
    lists = [(path, each) for path, each in named if isinstance(each, kind) and _is_row(each)]
    return {
        f"{path}.{name}".lstrip(".") for path, each in lists for name, _ in each.named_children()
    }


def _is_row(container: Module) -> bool:
    """Return whether members with names are of one class: others may be for anything."""
    is_named = isinstance(container, torch.nn.ModuleDict)
    return not is_named or len({type(each) for each in container.children()}) == 1


def _outermost(names: list[str]) -> list[str]:
    return [name for name in names if not any(is_within(name, other) for other in names)]


def _carried(layers: tuple[str, ...], events: list[_Event]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    returned: list[str] = []
    for name, has_returned in events:
        has_layers = any(each == name or is_within(each, name) for each in layers)
        if has_returned and has_layers:
            returned.append(name)
        if not has_returned and name in layers:
            found[name] = _last_of_each(_outermost(returned), layers)
    return found


def _last_of_each(names: list[str], layers: tuple[str, ...]) -> tuple[str, ...]:
    last = {name.rpartition(".")[0] if name in layers else f"{name}.": name for name in names}
    return tuple(last.values())


def _after(last: str, events: list[_Event]) -> tuple[str, ...]:
    ended = events.index(_Event(last, has_returned=True))
    return tuple(each.name for each in events[ended:] if not each.has_returned)
