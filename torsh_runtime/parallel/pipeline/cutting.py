"""Finds the places where a row of layers is cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torsh_runtime.errors import ConfigError


def parts_of(model: object, layers: Sequence[str], cuts: Sequence[str]) -> list[Sequence[str]]:
    """Return the layers of each stage; all stages but the first begin with one of `cuts`.

    Raises ConfigError for names that are no layers of the model, or not in the layers' order.
    """
    wrong = [name for name in cuts if name not in layers]
    if wrong or not layers:
        raise ConfigError(
            f"{type(model).__qualname__} cannot be cut at {', '.join(map(repr, wrong))}: its "
            f"layers are {', '.join(layers) or 'none'}. Give it a method pipeline_layers() that "
            f"names what it calls one after the other, if these are not they"
        )
    places = [0, *map(layers.index, cuts), len(layers)]
    if sorted(set(places)) != places:
        raise ConfigError(
            f"cuts {list(cuts)}: name layers after the first, each once, in their order: "
            f"{', '.join(layers)}"
        )
    return [layers[start:end] for start, end in pairwise(places)]
