"""Makes a model's plan from what is known of its layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.automatic.adapters import (
    adapted_in,
    with_adapters,
    without_adapters,
)
from torsh_runtime.parallel.automatic.entries import (
    entries_by_heads,
    entry_of_module,
    entry_of_parameter,
)
from torsh_runtime.parallel.automatic.experts import experts_in
from torsh_runtime.parallel.automatic.heads import Attention, attentions_of
from torsh_runtime.parallel.automatic.sequence import with_sequences
from torsh_runtime.parallel.automatic.styles import Style, styles_of
from torsh_runtime.parallel.tensor.layers import layers_of
from torsh_runtime.parallel.tensor.plan import Entry, Vocabulary, matched

AUTOMATIC = "auto"
_ALONE = (Style.VOCABULARY, Style.GATHERED)
"""Styles of layers that may stay whole whatever happens to others."""
_BY_ALL = {
    Style.COLUMN: Style.GATHERED,
    Style.PACKED_HEADS: Style.GATHERED,
    Style.ROW: Style.SPLIT,
    Style.SHARED: Style.WHOLE,
    Style.LATENT: Style.WHOLE,
}
"""Styles of an attention's layers where all ranks compute its heads, by their usual style."""


def resolved(
    plan: Mapping[str, Entry] | str, model: Any, ranks: int, experts: bool = False
) -> Mapping[str, Entry]:
    """Return the plan, made for the model if it is "auto". ConfigError for other strings."""
    if not isinstance(plan, str):
        return plan
    if plan != AUTOMATIC:
        raise ConfigError(f"a plan is a mapping or {AUTOMATIC!r}, not {plan!r}")
    return plan_of(model, ranks, experts=experts)


def plan_of(
    model: Any, ranks: int, *, sequence: bool = False, experts: bool = False
) -> dict[str, Entry]:
    """Return the plan by which parallelize(model, mesh, "auto") cuts a model of transformers.

    The plan is data that can be printed, changed and passed. It is that of the model (`_tp_plan`)
    or of its family. Heads stay whole. If there are fewer of them than ranks, or if it is not known
    how an attention uses them, its weights are cut and each rank computes all heads.

    Args:
        model: The model.
        ranks: The number of ranks that it is for.
        sequence: Whether ranks have parts of the sequence between layers, each with its share of
            norms and dropout.
        experts: Whether whole experts go to ranks along an axis of their own.

    Returns:
        What to do with each module or parameter, by patterns of their names.

    Raises:
        ConfigError: For plans that cannot be read; with `sequence` if that is impossible; with
            `experts` for a model that has none, or whose experts are not called with tokens,
            experts and weights.

    Example:
        ```python
        plan = tr.plan_of(model, ranks=4)
        plan["lm_head"] = tr.Column(gather_output=True)
        tr.parallelize(model, mesh, plan)
        ```
    """
    all_modules = dict(model.named_modules())
    all_parameters = dict(model.named_parameters(remove_duplicate=False))
    adapted = adapted_in(all_modules)
    modules = without_adapters(all_modules, adapted)
    parameters = without_adapters(all_parameters, adapted)
    spread = experts_in(modules) if experts else {}
    told = styles_of(model) if ranks > 1 or not spread else {}
    names = [name for name in (*modules, *parameters) if not _is_below(name, spread)]
    styles = _styles_by_name(names, told)
    _refuse_dropout(modules, styles)
    _leave_whole(modules, parameters, styles)
    attentions = attentions_of(modules)
    found = {**spread, **_of_attentions(modules, attentions, styles, ranks)}
    for name, style in styles.items():
        if name not in found:
            is_module = name in modules
            entry = (
                entry_of_module(name, modules[name], style)
                if is_module
                else entry_of_parameter(name, parameters[name], style)
            )
            found |= {name: entry} if entry is not None else {}
    if sequence:
        found = with_sequences(found, modules, attentions, ranks)
    found = with_adapters(found, adapted, all_parameters)
    order = [*all_modules, *all_parameters]
    plan = {name: found[name] for name in order if name in found}
    return _shortened(plan, all_modules, all_parameters)


def _refuse_dropout(modules: Mapping[str, Any], styles: Mapping[str, Style]) -> None:
    """Raise ConfigError if features that are cut are dropped by other means than a module."""
    for name, style in styles.items():
        owner = name.rpartition(".")[0]
        if style is Style.COLUMN and getattr(modules.get(owner), "activation_dropout", None):
            raise ConfigError(
                f"{owner!r} drops some outputs of {name!r}, of which each rank has a part, and no "
                f"module does it: set activation_dropout of the configuration to 0"
            )


def _styles_by_name(
    names: Iterable[str], told: Mapping[tuple[str, str], Style]
) -> dict[str, Style]:
    """Return the style of each module and parameter that has one; later patterns override."""
    found: dict[str, Style] = {}
    for name in names:
        for (prefix, pattern), style in told.items():
            if _ends(name, prefix, pattern):
                found[name] = style
    return found


def _is_below(name: str, above: Iterable[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in above)


def _ends(name: str, prefix: str, pattern: str) -> bool:
    """Return whether a name below the prefix ends as the pattern does."""
    if prefix and not name.startswith(f"{prefix}."):
        return False
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) >= len(wanted) and all(map(fnmatchcase, parts[-len(wanted) :], wanted))


def _of_attentions(
    modules: Mapping[str, Any],
    attentions: Mapping[str, Attention],
    styles: dict[str, Style],
    ranks: int,
) -> dict[str, Entry]:
    """Return entries of attentions whose heads are cut; change the styles of the others."""
    found: dict[str, Entry] = {}
    for attention in dict.fromkeys(attentions.values()):
        own = [
            name
            for name in styles
            if attentions.get(name if name in modules else name.rpartition(".")[0]) is attention
        ]
        entries = entries_by_heads(attention, modules, styles, ranks, own)
        if entries is not None and not _owns_others(modules, styles, own):
            found |= entries
            styles |= {name: Style.WHOLE for name in own if name not in entries}
            continue
        for name in own:
            can_gather = name in modules and hasattr(modules[name], "weight")
            is_table = "Embedding" in {each.__name__ for each in type(modules.get(name)).__mro__}
            styles[name] = _BY_ALL.get(styles[name], styles[name])
            if styles[name] is Style.GATHERED and (is_table or not can_gather):
                styles[name] = Style.WHOLE
    return found


def _owns_others(modules: Mapping[str, Any], styles: Mapping[str, Style], own: list[str]) -> bool:
    """Return whether modules around an attention's layers have parameters without a style."""
    around = {name.rpartition(".")[0] for name in own if name in modules}
    return any(
        each is not None and f"{name}.{parameter}" not in styles
        for name in around
        for parameter, each in modules[name]._parameters.items()
    )


def _leave_whole(
    modules: Mapping[str, Any], parameters: Mapping[str, Any], styles: dict[str, Style]
) -> None:
    """Leave layers of _ALONE whole if they, or parameters tied to theirs, cannot be cut."""
    for name, style in styles.items():
        if style is Style.VOCABULARY and not _can_be_cut(name, modules.get(name)):
            styles[name] = Style.WHOLE
    tied = _tied(parameters, styles)
    for _ in tied:  # what one leaves whole others may be tied to
        for owners in tied:
            if not all(styles.get(name) in _ALONE for name in owners):
                styles |= {name: Style.WHOLE for name in owners if styles.get(name) in _ALONE}


def _can_be_cut(name: str, table: Any) -> bool:
    try:
        layers_of("torch").kind_of(name, table, Vocabulary())
    except ConfigError:
        return False
    return True


def _tied(parameters: Mapping[str, Any], styles: Mapping[str, Style]) -> list[list[str]]:
    """Return, for each parameter that has several names, what decides on it under each.

    That is the parameter's own name if it has a style, or else its module's.
    """
    owners: dict[int, list[str]] = {}
    for name, parameter in parameters.items():
        where = name if name in styles else name.rpartition(".")[0]
        owners.setdefault(id(parameter), []).append(where)
    return [names for names in owners.values() if len(names) > 1]


def _shortened(
    plan: dict[str, Entry], modules: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Entry]:
    """Return the plan with one pattern for layers of a list that are treated alike."""
    groups: dict[str, list[str]] = {}
    for name in plan:
        groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "*", name), []).append(name)
    found: dict[str, Entry] = {}
    for pattern, names in groups.items():
        entry = plan[names[0]]
        alike = all(plan[name] == entry for name in names)
        if alike and len(matched(modules, {pattern: entry}, parameters)) == len(names):
            found[pattern] = entry
        else:
            found |= {name: plan[name] for name in names}
    return found
