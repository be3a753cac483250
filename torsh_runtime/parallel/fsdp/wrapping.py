"""Chooses the units of a model by the policy of its configuration."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from torsh_runtime.framework import Framework, Module, framework_of
from torsh_runtime.parallel.fsdp.config import (
    AutoWrapPolicy,
    CustomAutoWrap,
    ModuleTypeBasedAutoWrap,
    SizeBasedAutoWrap,
)

Parameters = list[tuple[str, Any]]


def units_of(
    model: Module,
    policy: AutoWrapPolicy,
    size_of: Callable[[Any], int],
    sharded: Set[int] = frozenset(),
) -> list[tuple[str, Any, Parameters]]:
    """Name, module and parameters of each unit that has any, the model itself first.

    A parameter is of the innermost unit that all modules which have it are in. size_of: a
    parameter's elements, the same on all ranks. sharded: id() of those that are of other units
    already.
    """
    modules = [*model.named_modules()]
    owned = {key: each for key, each in _by_module(modules).items() if key not in sharded}
    chosen = _chosen(framework_of(model), policy, size_of, modules, owned)
    units: dict[str, Parameters] = {name: [] for name, _ in modules if name in chosen}
    for homes, named in owned.values():
        units[_innermost(homes, chosen)].append(named)
    by_name = dict(modules)
    return [(name, by_name[name], mine) for name, mine in units.items() if mine or not name]


def _by_module(modules: list[tuple[str, Any]]) -> dict[int, tuple[list[str], tuple[str, Any]]]:
    """Return for each parameter, by id(), the names of the modules that have it, and its first
    name and itself."""
    found: dict[int, tuple[list[str], tuple[str, Any]]] = {}
    for name, module in modules:
        for own, parameter in module.named_parameters(recurse=False):
            path = f"{name}.{own}" if name else own
            found.setdefault(id(parameter), ([], (path, parameter)))[0].append(name)
    return found


def _chosen(
    framework: Framework,
    policy: AutoWrapPolicy,
    size_of: Callable[[Any], int],
    modules: list[tuple[str, Any]],
    owned: dict[int, tuple[list[str], tuple[str, Any]]],
) -> set[str]:
    chosen = {""}
    left = {name: 0 for name, _ in modules}
    for homes, (_, parameter) in owned.values():
        left[homes[0]] += size_of(parameter)
    for name, module in reversed(modules):  # the innermost first
        if name and framework.is_called(module) and _is_unit(policy, module, left[name]):
            chosen.add(name)
        elif name:
            left[name.rpartition(".")[0]] += left[name]
    return chosen


def _is_unit(policy: AutoWrapPolicy, module: Any, size: int) -> bool:
    match policy:
        case SizeBasedAutoWrap(least):
            return size >= least
        case ModuleTypeBasedAutoWrap(types):
            names = {each.__name__ for each in type(module).__mro__}
            return any(
                each in names if isinstance(each, str) else isinstance(module, each)
                for each in types
            )
        case CustomAutoWrap(function):
            return bool(function(module))
    return False


def _innermost(homes: list[str], chosen: set[str]) -> str:
    """Return the innermost unit that contains all these modules."""
    above = [[each for each in chosen if is_within(home, each)] for home in homes]
    common = set(above[0]).intersection(*above[1:])
    return max(common, key=lambda name: name.count(".") + bool(name))


def is_within(name: str, unit: str) -> bool:
    """Return whether a module `name` is the module of the unit of that name, or within it."""
    return not unit or name == unit or name.startswith(f"{unit}.")
