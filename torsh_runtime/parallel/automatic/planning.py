"""A model's plan, out of what its layers say of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.automatic.heads import Attention, attentions_of
from torsh_runtime.parallel.automatic.styles import Style, styles_of
from torsh_runtime.parallel.tensor.plan import Column, Entry, Row, Vocabulary, matched

AUTOMATIC = "auto"
_BY_ALL = (Style.GATHERED, Style.SPLIT, Style.SHARED)
"""Layers of attentions whose heads all ranks compute."""


def resolved(plan: Mapping[str, Entry] | str, model: Any, ranks: int) -> Mapping[str, Entry]:
    """The plan that is meant. ConfigError for words that mean none."""
    if not isinstance(plan, str):
        return plan
    if plan != AUTOMATIC:
        raise ConfigError(f"a plan is a mapping or {AUTOMATIC!r}, not {plan!r}")
    return plan_of(model, ranks)


def plan_of(model: Any, ranks: int) -> dict[str, Entry]:
    """The plan by which parallelize(model, mesh, "auto") cuts a model of transformers on so many
    ranks: data, to be printed, changed and passed.

    It is that of the model (`_tp_plan`) or of its family. Heads stay whole. Where there are fewer
    of them than ranks, or the attention counts them itself, weights are cut and each rank computes
    all heads. ConfigError for what cannot be read.
    """
    modules = dict(model.named_modules())
    styles = _styles_by_module(modules, styles_of(model))
    attentions = attentions_of(modules)
    for attention in dict.fromkeys(attentions.values()):
        names = [name for name, each in attentions.items() if each is attention]
        _settle(attention, names, modules, styles, ranks)
    _leave_whole(modules, styles)
    found = {
        name: entry
        for name, style in styles.items()
        if (entry := _entry(modules[name], style, attentions.get(name))) is not None
    }
    return _shortened(found, modules)


def _styles_by_module(
    modules: Mapping[str, Any], told: Mapping[tuple[str, str], Style]
) -> dict[str, Style]:
    """Of each module that has one; what is told last goes before."""
    found: dict[str, Style] = {}
    for (prefix, pattern), style in told.items():
        for name in modules:
            if _ends(name, prefix, pattern):
                found[name] = style
    return {name: found[name] for name in modules if name in found}


def _ends(name: str, prefix: str, pattern: str) -> bool:
    """Whether a name below the prefix ends as the pattern does."""
    if prefix and not name.startswith(f"{prefix}."):
        return False
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) >= len(wanted) and all(map(fnmatchcase, parts[-len(wanted) :], wanted))


def _settle(
    attention: Attention,
    names: Iterable[str],
    modules: Mapping[str, Any],
    styles: dict[str, Style],
    ranks: int,
) -> None:
    """Let all layers of an attention be cut by heads, or each for itself."""
    own = [name for name in names if name in styles]
    by_heads = attention.key_value_heads >= ranks
    by_heads &= not any(styles[name] in _BY_ALL for name in own)
    by_heads &= not any(_has_own_parameters(modules[name]) for name in _around(own))
    if by_heads:
        return
    for name in own:
        if styles[name] in (Style.COLUMN, Style.PACKED_HEADS):
            styles[name] = Style.GATHERED
        elif styles[name] is Style.ROW:
            styles[name] = Style.SPLIT
        elif styles[name] is Style.SHARED:
            styles[name] = Style.WHOLE


def _around(names: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[0] for name in names}


def _has_own_parameters(module: Any) -> bool:
    return any(each is not None for each in module._parameters.values())


def _leave_whole(modules: Mapping[str, Any], styles: dict[str, Style]) -> None:
    """Let what stands alone be whole where it cannot be cut, or what it is tied to cannot be."""
    for name, style in styles.items():
        if style is Style.VOCABULARY and not _is_plain(modules[name], "Embedding"):
            styles[name] = Style.WHOLE
    alone, tied = (Style.VOCABULARY, Style.GATHERED), _tied(modules)
    for _ in tied:  # what one leaves whole others may be tied to
        for owners in tied:
            if not all(styles.get(name) in alone for name in owners):
                styles |= {name: Style.WHOLE for name in owners if styles.get(name) in alone}


def _is_plain(module: Any, kind: str) -> bool:
    plain = next((each for each in type(module).__mro__ if each.__name__ == kind), None)
    return plain is not None and type(module).forward is plain.forward  # type: ignore[attr-defined]


def _tied(modules: Mapping[str, Any]) -> list[list[str]]:
    """Names of modules that have one parameter together."""
    owners: dict[int, list[str]] = {}
    for name, module in modules.items():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(name)
    return [names for names in owners.values() if len(names) > 1]


def _entry(module: Any, style: Style, attention: Attention | None) -> Entry | None:
    """What becomes of a module; None if it stays as it is."""
    heads = attention.key_value_heads if attention else 0
    if style is Style.VOCABULARY:
        return Vocabulary()
    if style is Style.GATHERED:
        return Column(gather_output=True)
    if style is Style.SPLIT:
        return Row(input_is_parallel=False)
    if style is Style.ROW:
        return Row(unit=_unit(module, "in_features", heads))
    if style is Style.COLUMN:
        return Column(unit=_unit(module, "out_features", heads))
    if style in (Style.PACKED, Style.PACKED_HEADS):
        count = 2 if style is Style.PACKED else 3
        size = module.out_features // count
        return Column(unit=_unit(module, "out_features", heads * count), sections=(size,) * count)
    return None


def _unit(module: Any, name: str, heads: int) -> int:
    """Features that stay together."""
    features = getattr(module, name, 0)
    return features // heads if heads and not features % heads else 1


def _shortened(plan: dict[str, Entry], modules: Mapping[str, Any]) -> dict[str, Entry]:
    """With one pattern for layers of a list that are treated alike."""
    groups: dict[str, list[str]] = {}
    for name in plan:
        groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "*", name), []).append(name)
    found: dict[str, Entry] = {}
    for pattern, names in groups.items():
        entry = plan[names[0]]
        alike = all(plan[name] == entry for name in names)
        if alike and len(matched(modules, {pattern: entry})) == len(names):
            found[pattern] = entry
        else:
            found |= {name: plan[name] for name in names}
    return found
