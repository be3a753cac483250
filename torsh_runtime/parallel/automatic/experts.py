"""Finds the modules of a model that hold experts which can be spread."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.parallel.tensor.kits import layers_of
from torsh_runtime.parallel.tensor.plan import Experts

_COUNT = "num_experts"


def experts_in(modules: Mapping[str, Module]) -> dict[str, Experts]:
    """Return the entry of each module that holds experts, by its name. ConfigError if none does."""
    found: dict[str, Experts] = {}
    others: dict[str, str] = {}
    for name, module in modules.items():
        kind = type(module).__name__
        if "expert" not in kind.lower() and name.rpartition(".")[2] != "experts":
            continue
        counts = (_COUNT,) if hasattr(module, _COUNT) else ()
        problem = _problem(module, counts)
        if problem:
            others.setdefault(kind, f"{name!r} is a {kind}: {problem}")
        else:
            found[name] = Experts(counts)
    if not found:
        raise ConfigError(
            "; ".join(others.values())
            or "the model has no modules of experts: pass a mesh without "
            "an axis 'ep', as mesh['tp']"
        )
    return found


def _problem(module: Module, counts: tuple[str, ...]) -> str:
    names = [each for each in inspect.signature(type(module).forward).parameters if each != "self"]
    if len(names) < 3:
        return (
            f"its forward() takes {', '.join(names)}, and experts that are spread over ranks take "
            f"tokens, the experts of each and their weights: pass a mesh without an axis 'ep'"
        )
    try:
        layers_of(framework_of(module).name).number_of_experts(module, counts)
    except ConfigError as error:
        return str(error)
    return ""
