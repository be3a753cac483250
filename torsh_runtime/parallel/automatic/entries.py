"""Translates styles of layers into entries of plans."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Container, Iterable, Mapping
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, Tensor
from torsh_runtime.parallel.automatic.families import (
    COUNTS,
    DROPPING_FOR_ALL,
    OF_INPUTS,
    PACKED_EXPERTS,
    Counts,
)
from torsh_runtime.parallel.automatic.heads import Attention
from torsh_runtime.parallel.automatic.styles import Style
from torsh_runtime.parallel.tensor.plan import (
    Column,
    Cut,
    Entry,
    Heads,
    Part,
    Row,
    Shared,
    Summed,
    Vocabulary,
)

_OF_EXPERTS = (Style.EXPERTS_COLUMN, Style.EXPERTS_ROW)
_GROUPS = "num_key_value_groups"


_OF_MODULES: Mapping[Style, Entry | None] = {
    Style.VOCABULARY: Vocabulary(),
    Style.GATHERED: Column(gather_output=True),
    Style.SPLIT: Row(input_is_parallel=False),
    Style.COLUMN: Column(),
    Style.EXPERTS_COLUMN: Column(),
    Style.ROW: Row(),
    Style.EXPERTS_ROW: Row(),
    Style.SPREAD: Row(output_is_spread=True),
    Style.SUMMED: Summed(),
    Style.DROPOUT: Part(-1),
    Style.SHARED: Shared(),
    Style.LATENT: None,
    Style.WHOLE: None,
}


def entry_of_module(name: str, module: Module, style: Style) -> Entry | None:
    """Return the entry of a module outside attentions whose heads are cut; None keeps it whole."""
    if style is Style.EXPERTS:
        return Summed() if any(each is not None for each in module._parameters.values()) else None
    if style in _OF_MODULES:
        return _OF_MODULES[style]
    if style is Style.PACKED:
        half = _outputs(name, module) // 2
        return Column(sections=(half, half))
    raise ConfigError(
        f"{name!r} is a {type(module).__name__}, of which {style.value}: that is for "
        f"parameters, so give a plan that says what becomes of it"
    )


def entry_of_parameter(name: str, parameter: Tensor, style: Style) -> Entry | None:
    """Return the entry of a parameter that is named itself; None keeps it whole."""
    outputs = -2 if parameter.dim() > 1 else -1
    if style in _OF_EXPERTS and parameter.dim() == 3 and name.endswith(PACKED_EXPERTS):
        style = Style.PACKED
    last, before = parameter.shape[-1], parameter.shape[outputs]
    entries: dict[Style, Entry | None] = {
        Style.COLUMN: Cut(outputs),
        Style.EXPERTS_COLUMN: Cut(outputs),
        Style.GATHERED: Cut(outputs),
        Style.ROW: Cut(-1),
        Style.EXPERTS_ROW: Cut(-1),
        Style.FIRST: Cut(),
        Style.PACKED: Cut(outputs, sections=(before // 2,) * 2),
        Style.PACKED_ROW: Cut(-1, sections=(last // 2,) * 2),
        Style.INTERLEAVED_ROW: Cut(-1, unit=2),
        Style.ONCE: Shared(divided=True),
        Style.SHARED: Shared(),
        Style.WHOLE: None,
    }
    if style in entries:
        return entries[style]
    raise ConfigError(
        f"{name!r} is a parameter, of which {style.value}: that is for modules, so give a plan "
        f"that says what becomes of it"
    )


def entries_by_heads(
    attention: Attention,
    modules: Mapping[str, Module],
    styles: Mapping[str, Style],
    ranks: int,
    own: Iterable[str],
) -> dict[str, Entry] | None:
    """Return the entries of an attention whose heads are cut; None if they cannot be.

    own: names of its modules and parameters that have a style.
    """
    names = [name for name in own if styles[name] is not Style.WHOLE]
    heads, keys = attention.heads, attention.key_value_heads
    rows = [name for name in names if styles[name] is Style.ROW]
    if heads < ranks or heads % keys or not rows or _drops_for_all(attention, modules):
        return None
    if _shapes_by_inputs(modules[rows[0].rpartition(".")[0]]):
        return None
    if any(styles[name] is Style.LATENT for name in names):
        return _latent(attention, modules, styles)
    width, rest = divmod(_inputs(rows[0], modules[rows[0]]), heads)
    found: dict[str, Entry] = {}
    for name in names:
        entry = _by_heads(name, modules.get(name), styles[name], attention, width, ranks)
        if entry is None or rest:
            return None
        found[name] = entry
    columns = [name for name in names if isinstance(found[name], Column)]
    where = min((name.rpartition(".")[0] for name in columns), key=len, default=attention.where)
    own_norms = _head_norms(where, attention, modules, {*names}, (width, ranks))
    if own_norms is None:
        return None
    return {where: _counted(attention, modules[where]), **found, **own_norms}


def _head_norms(
    where: str,
    attention: Attention,
    modules: Mapping[str, Module],
    known: Container[str],
    sizes: tuple[int, int],
) -> dict[str, Entry] | None:
    """Return the entries of what normalises each head, which not every plan of transformers names.

    Returns None if the module has other layers that are unknown. sizes: the width of a head, and
    the number of ranks.
    """
    width, ranks = sizes
    heads, keys = attention.heads, attention.key_value_heads
    by_shape: dict[tuple[int, ...], Entry] = {(heads, width): Cut(0)}
    if keys != heads:
        by_shape[heads, width] = Cut(0, key_value_heads=keys)
        by_shape |= {(keys, width): Cut(0)} if keys >= ranks else {}
    found: dict[str, Entry] = {}
    for name, module in modules.items():
        own = {key: each for key, each in module._parameters.items() if each is not None}
        if not own or name in known or not name.startswith(f"{where}."):
            continue
        if "norm" in name.rpartition(".")[2] and {(*each.shape,) for each in own.values()} == {
            (width,)
        }:
            found[name] = Shared()
            continue
        for key, each in own.items():
            if (*each.shape,) not in by_shape:
                return None
            found[f"{name}.{key}"] = by_shape[*each.shape]
    return found


def _drops_for_all(attention: Attention, modules: Mapping[str, Module]) -> bool:
    """Return whether it drops values that all ranks have, while they draw for their own heads."""
    return any(
        name.startswith(f"{attention.where}.")
        and name.rpartition(".")[2] in DROPPING_FOR_ALL
        and getattr(module, "p", None)
        for name, module in modules.items()
    )


def _shapes_by_inputs(module: Module) -> bool:
    """Return whether forward() uses the number of its input's features, which all heads share."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and any(
        name in OF_INPUTS
        for each in dis.get_instructions(code)
        if each.opname.startswith("LOAD_FAST")
        for name in (each.argval if isinstance(each.argval, tuple) else (each.argval,))
    )


def _latent(
    attention: Attention, modules: Mapping[str, Module], styles: Mapping[str, Style]
) -> dict[str, Entry] | None:
    """Return the entries of an attention with latent keys and values; None if it cannot be cut.

    Its keys and values are computed from few features that all heads share. Each rank computes
    these, and a part of the sum over heads.
    """
    where, heads = attention.where, attention.heads
    if getattr(modules[where], "attention_dropout", None):
        return None  # which all ranks would draw alike
    found: dict[str, Entry] = {where: Summed()}
    for name, module in modules.items():
        own = [each for each, value in module._parameters.items() if value is not None]
        if not own or not f"{name}.".startswith(f"{where}."):
            continue
        cut: Entry = Shared()
        if styles.get(name) is Style.COLUMN:
            cut = Cut(0, unit=_outputs(name, module) // heads)
        elif styles.get(name) is Style.ROW:
            cut = Cut(1, unit=_inputs(name, module) // heads)
        for each in own:
            is_added = styles.get(name) is Style.ROW and each == "bias"
            found[f"{name}.{each}"] = Shared(divided=True) if is_added else cut
    return found


def _by_heads(
    name: str, module: Any, style: Style, attention: Attention, width: int, ranks: int
) -> Entry | None:
    heads, keys = attention.heads, attention.key_value_heads
    grouped = keys if keys != heads else None
    if style is Style.SHARED:
        return Shared()
    if module is None:
        return Cut(key_value_heads=grouped) if style is Style.COLUMN else None
    if style is Style.ROW:
        return Row(unit=width, key_value_heads=grouped)
    if style is Style.PACKED_HEADS:
        sections = (heads * width, keys * width, keys * width)
        if sum(sections) != _outputs(name, module):
            return None
        return Column(unit=width, sections=sections, query_heads=heads if grouped else None)
    if style is not Style.COLUMN:
        return None
    outputs = _outputs(name, module)
    if keys == 1 != heads and outputs == (heads + 2) * width:
        return Column(unit=width, sections=(heads * width, width, width), query_heads=heads)
    if grouped and outputs == heads * width:
        return Column(unit=width, key_value_heads=keys)
    if grouped and outputs == keys * width:
        return Column(unit=width, query_heads=heads)
    return Column(unit=outputs // keys) if keys >= ranks and not outputs % keys else None


def _counted(attention: Attention, module: Module) -> Heads:
    """Return the attributes by which a module counts its heads.

    An entry without any is needed too, for dropout.
    """
    heads, keys = attention.heads, attention.key_value_heads
    told = COUNTS.get(attention.family, Counts())
    groups = (_GROUPS,) if getattr(module, _GROUPS, None) == heads // keys != 1 else ()
    cut = tuple(name for name in told.cut if _has(module, name))
    key_value_cut = tuple(name for name in told.key_value_cut if _has(module, name))
    return Heads(heads, keys, cut, key_value_cut, groups, told.inputs)


def _has(module: Module, name: str) -> bool:
    for part in name.split("."):
        if not hasattr(module, part):
            return False
        module = getattr(module, part)
    return True


def _outputs(name: str, module: Module) -> int:
    """Return the number of the module's output features."""
    for each in ("out_features", "nf", "embedding_dim"):
        if isinstance(getattr(module, each, None), int):
            return int(getattr(module, each))
    raise _unknown(name, module)


def _inputs(name: str, module: Module) -> int:
    """Return the number of the module's input features."""
    for each in ("in_features", "nx"):
        if isinstance(getattr(module, each, None), int):
            return int(getattr(module, each))
    raise _unknown(name, module)


def _unknown(name: str, module: Module) -> ConfigError:
    return ConfigError(
        f"{name!r} is a {type(module).__name__}, of which the model's plan says that its features "
        f"are cut, and it does not tell how many it has: give a plan that says what becomes of it, "
        f"as Column(), Row() or, for its parameters, Cut()"
    )
