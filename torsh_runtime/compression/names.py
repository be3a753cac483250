"""Creates compressors from the text of an option."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torsh_runtime.compression.base import Compressor
from torsh_runtime.compression.cast import Cast
from torsh_runtime.compression.power_sgd import PowerSGD
from torsh_runtime.compression.quantised import Int8, OneBit
from torsh_runtime.compression.sparse import RandomK, Threshold, TopK
from torsh_runtime.errors import ConfigError

_WITH_NUMBER: dict[str, tuple[Callable[..., Compressor], Callable[[str], float], str]] = {
    "topk": (TopK, float, "ratio"),
    "randomk": (RandomK, float, "ratio"),
    "threshold": (Threshold, float, "magnitude"),
    "powersgd": (PowerSGD, int, "rank"),
}
_PLAIN: dict[str, Callable[[], Compressor]] = {
    "onebit": OneBit,
    "int8": Int8,
    "fp16": partial(Cast, "float16"),
    "bf16": partial(Cast, "bfloat16"),
}


def from_name(name: str) -> Compressor:
    """Create the compressor of a name such as "topk:0.01", "powersgd:4" or "int8".

    Options without a number in the name have their defaults.

    Args:
        name: onebit, int8, fp16, bf16, topk:RATIO, randomk:RATIO, threshold:MAGNITUDE or
            powersgd:RANK.

    Returns:
        The compressor.

    Raises:
        ConfigError: For an unknown name; it lists the known ones.

    Example:
        ```python
        compressor = tr.compression.from_name("powersgd:4")
        model.register_comm_hook(None, compressor)
        ```
    """
    kind, colon, number = name.partition(":")
    if kind in _PLAIN and not colon:
        return _PLAIN[kind]()
    try:
        make, read, _ = _WITH_NUMBER[kind]
        arguments = [read(number)] if colon else []
    except (KeyError, ValueError):
        known = [*_PLAIN, *(f"{key}:{what.upper()}" for key, (_, _, what) in _WITH_NUMBER.items())]
        raise ConfigError(
            f"there is no compressor {name!r}; there are {', '.join(known)}"
        ) from None
    return make(*arguments)
