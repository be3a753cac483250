"""Names how layers may be cut, in the words of transformers' models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module
from torsh_runtime.parallel.automatic.families import FAMILIES


class Style(Enum):
    """Describes how a module or a parameter is cut."""

    COLUMN = "its output features are cut"
    ROW = "its input features are cut, as the columns before it left them"
    GATHERED = "its output features are cut, and all ranks get all of them"
    SPLIT = "its input features are cut, and all ranks have all of them"
    PACKED = "as COLUMN, for two layers that are one after the other in one weight"
    PACKED_HEADS = "as COLUMN, for those of queries, keys and values in one weight"
    PACKED_ROW = "a parameter whose last dimension is cut in two halves, each for itself"
    INTERLEAVED_ROW = "a parameter whose last dimension is cut, of pairs"
    FIRST = "a parameter whose first dimension is cut"
    SPREAD = "as ROW, and each rank uses the sum in its own way"
    VOCABULARY = "its rows are cut"
    SHARED = "whole, and used for the own heads"
    LATENT = "whole, and one part of it is used for the own heads"
    ONCE = "whole, and added to a sum over ranks"
    WHOLE = "whole"
    DROPOUT = "is given a part of the features"
    EXPERTS_COLUMN = "as COLUMN, or as PACKED for experts of three dimensions"
    EXPERTS_ROW = "as ROW, or as PACKED for experts' gates of three dimensions"
    EXPERTS = "as SUMMED if it has parameters of its own, else whole"
    SOME = "each rank has some of the experts"
    SUMMED = "gives a part of a sum, for its parameters are cut"


_STYLES = {
    "colwise": Style.COLUMN,
    "local_colwise": Style.EXPERTS_COLUMN,
    "embedding_colwise": Style.COLUMN,
    "rowwise": Style.ROW,
    "local_rowwise": Style.EXPERTS_ROW,
    "colwise_rep": Style.GATHERED,
    "colwise_gather_output": Style.GATHERED,
    "rowwise_rep": Style.SPLIT,
    "rowwise_split_input": Style.SPLIT,
    "packed_colwise": Style.PACKED,
    "packed_heads": Style.PACKED_HEADS,
    "packed_rowwise": Style.PACKED_ROW,
    "local_packed_rowwise": Style.PACKED_ROW,
    "interleaved_rowwise": Style.INTERLEAVED_ROW,
    "embedding_rowwise": Style.VOCABULARY,
    "replicated_with_grad_allreduce": Style.SHARED,
    "mla_kv_a_proj": Style.LATENT,
    "added_once": Style.ONCE,
    "replicate": Style.WHOLE,
    "sequence_parallel": Style.WHOLE,
    "gather": Style.EXPERTS,
    "ep_router": Style.WHOLE,
    "grouped_gemm": Style.SOME,
    "local": Style.WHOLE,
    "local_params": Style.WHOLE,
    "all_reduce": Style.WHOLE,
    "dropout_colwise": Style.DROPOUT,
    "moe_tp_experts": Style.SUMMED,
    "summed": Style.SUMMED,
    "first_colwise": Style.FIRST,
    "rowwise_spread": Style.SPREAD,
}
"""Styles by their names in `_tp_plan`, `base_model_tp_plan` and FAMILIES."""


def styles_of(model: Module) -> dict[tuple[str, str], Style]:
    """Return styles by the name of a part of the model and a pattern for ends of names below it.

    The last pattern that a name matches holds: the model's own plan comes before what is known of
    the families of its parts, and short patterns before long ones. ConfigError for unknown styles,
    and for a model without any.
    """
    carried = _longest_last(_carried(model))
    told = {("", pattern): _style(pattern, name) for pattern, name in carried}
    for prefix, family in _families(model):
        for pattern, name in _longest_last(FAMILIES.get(family, {})):
            told[prefix, pattern] = _style(pattern, name)
    if not told:
        kinds = ", ".join(dict.fromkeys(family for _, family in _families(model)))
        raise ConfigError(
            f"{type(model).__name__} carries no plan of transformers (`_tp_plan`), and none is "
            f"known for {f'the model type {kinds}' if kinds else 'its kind'}: give a plan, as "
            f'{{"layers.*.up": tr.Column(), "layers.*.down": tr.Row()}}'
        )
    return told


def _longest_last(told: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(told.items(), key=lambda each: each[0].count("."))


def _style(pattern: str, name: str) -> Style:
    if name not in _STYLES:
        raise ConfigError(
            f"{pattern!r} of the model's plan is {name!r}, which is not known here: give a plan "
            f"that says what becomes of it, as Column(), Row() or Vocabulary(). Known are "
            f"{', '.join(_STYLES)}"
        )
    return _STYLES[name]


def _carried(model: Module) -> Mapping[str, str]:
    """Return a model's own plan, by patterns of whole names."""
    own = getattr(model, "_tp_plan", None)
    if own:
        return dict(own)
    found: dict[str, str] = {}
    config = getattr(model, "config", None)
    below = getattr(model, "base_model_prefix", "")
    prefix = f"{below}." if below and hasattr(model, below) else ""
    for pattern, name in (getattr(config, "base_model_tp_plan", None) or {}).items():
        found[prefix + pattern] = name
    return found


def _families(model: Module) -> Iterator[tuple[str, str]]:
    """Yield the names and types of the model's parts that are models."""
    for name, module in model.named_modules():
        family = getattr(getattr(module, "config", None), "model_type", None)
        if family and hasattr(module, "base_model_prefix"):
            yield name, family
