"""Plans that would compute something else without a word, found before anything is changed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module
from torsh_runtime.parallel.tensor.plan import Column, Cut, Heads, Own, Part, Row, Shared, Summed

_COUNTS = re.compile(r"(num|n)_?(\w+_)?heads?$")
_FEATURES = re.compile(r"intermediate|inner")
_BEFORE = (
    "__init__",
    "_init_weights",
    "init_mamba_weights",
    "reset_parameters",
    "_reset_parameters",
    "extra_repr",
)
"""Methods that make a module, and compute nothing."""


def check_plan(model: Module, entries: Mapping[str, Any]) -> None:
    """Raise ConfigError for entries that do not fit together. entries: by the names of their
    modules."""
    modules = dict(model.named_modules())
    for where, entry in entries.items():
        above = entry.entry if isinstance(entry, Own) else None
        if isinstance(above, Summed):
            _check_summed(model, where, modules, entries)
            _check_features(where, modules[where], entry.parameters)
        if isinstance(above, Heads) and above.sequence_dim is not None:
            _check_gathered(where, above, entries)
    for where, module in modules.items():
        _check_counts(where, module, entries)


def _check_summed(
    model: Module, where: str, modules: Mapping[str, Module], entries: Mapping[str, Any]
) -> None:
    """Raise ConfigError for what is used within such a module, and would count once for each
    rank without an entry that says so."""
    shared: list[str] = []
    for name in (each for each in modules if _is_below(each, where)):
        entry = entries.get(name)
        if isinstance(entry, Row) and entry.output_is_spread:
            continue
        if entry is not None and not isinstance(entry, Own):
            raise ConfigError(
                f"the plan says Summed() of {where!r} and {type(entry).__name__}() of {name!r} "
                f"below it, which would be summed twice: say Cut() of its parameters, or "
                f"Row(output_is_spread=True)"
            )
        if isinstance(entry, Own) and isinstance(entry.entry, Shared | Part):
            shared.append(name)
        told = entry.parameters if isinstance(entry, Own) else {}
        for parameter, _ in modules[name].named_parameters(recurse=False):
            if parameter not in told and not any(_is_below(name, each) for each in shared):
                raise ConfigError(
                    f"{where!r} is Summed(), and each rank would add its "
                    f"{'.'.join(filter(None, (name, parameter)))!r} once more: say in the plan "
                    f"that it is Cut(), or Shared(divided=True) if it is added to the sum as a "
                    f"bias is, or Shared() if it is within a part of the sum"
                )


def _check_features(where: str, module: Module, parameters: Mapping[str, Any]) -> None:
    """Raise ConfigError for a module that counts features of which its plan cuts some."""
    cut = {name for name, entry in parameters.items() if isinstance(entry, Cut)}
    sizes = {size for name in cut for size in getattr(module, name).shape}
    for name in sorted(filter(_FEATURES.match, _used_names(type(module)))):
        count = getattr(module, name, None)
        if count in sizes:
            raise ConfigError(
                f"{where!r} is a {type(module).__name__}, whose forward() counts features by its "
                f"{name}, which is {count}, and each rank has some of them: leave it whole, or "
                f"take a version of the model that counts what it is given"
            )


def _check_gathered(where: str, heads: Heads, entries: Mapping[str, Any]) -> None:
    for name, entry in entries.items():
        if not _is_below(name, where) or not isinstance(entry, Column):
            continue
        is_given_others = bool(heads.sequence_inputs) and entry.sequence_dim is None
        if entry.sequence_dim != heads.sequence_dim and not is_given_others:
            raise ConfigError(
                f"the plan says sequence_dim={heads.sequence_dim} of {where!r} and "
                f"{entry.sequence_dim} of {name!r} below it: say the same of both"
            )


def _check_counts(where: str, module: Module, entries: Mapping[str, Any]) -> None:
    """Raise ConfigError for a module that counts heads which its plan cuts without adjusting the
    counts."""
    sizes = _cut_sizes(where, module, entries)
    if not sizes:
        return
    entry = entries.get(where)
    heads = entry.entry if isinstance(entry, Own) else None
    told = (*heads.cut, *heads.key_value_cut) if isinstance(heads, Heads) else ()
    for name, count in _counts(module):
        if name not in told and any(size % count == 0 for size in sizes):
            raise ConfigError(
                f"{where!r} is a {type(module).__name__}, which counts heads by its {name} of "
                f"{count}, and each rank has only some of them: give it "
                f"Heads({count}, cut=({name!r},)) in the plan"
            )


def _cut_sizes(where: str, module: Module, entries: Mapping[str, Any]) -> list[int]:
    """Return the sizes of outputs of which each rank has a part, of layers right below a module."""
    found: list[int] = []
    for name, entry in entries.items():
        parent, _, last = name.rpartition(".")
        if not name or parent != where or not isinstance(entry, Column) or entry.gather_output:
            continue
        layer = getattr(module, last)
        found += entry.sections or [getattr(layer, "out_features", max(layer.weight.shape))]
    return found


def _counts(module: Module) -> Iterator[tuple[str, int]]:
    """Yield attributes by which the module's methods count heads, and the counts."""
    used = _used_names(type(module))
    for name in sorted(filter(_COUNTS.match, used)):
        for path, held in ((name, module), (f"config.{name}", getattr(module, "config", None))):
            count = getattr(held, name, None)
            is_used = held is module or "config" in used
            if is_used and isinstance(count, int) and count > 1:
                yield path, count
                break


def _used_names(kind: type) -> set[str]:
    """Return the names of attributes that methods of a model's class use."""
    found = set[str]()
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] in ("torch", "torsh_runtime", "builtins"):
            continue
        for name, method in vars(each).items():
            code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
            if code is not None and name not in _BEFORE:
                found |= _names(code)
    return found


def _names(code: CodeType) -> set[str]:
    within = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*within)


def _is_below(name: str, above: str) -> bool:
    return not above or name == above or name.startswith(f"{above}.")
