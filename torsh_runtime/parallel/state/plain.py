"""Nested Python values, with arrays in them, as what JSON can tell and tensors beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from torsh_runtime.arrays.raw import empty, framework_of, is_array
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.parallel.state.contents import Source

_KEY = "__kept__"
"""Marks a dict that stands for what JSON has not."""


def encode(value: Any, name: str, tensors: dict[str, ShardedTensor]) -> Any:
    """The value for JSON; its arrays are put into `tensors`, under names that begin with `name`.

    ConfigError for what is no number, text, bytes, None, array, or list, tuple or dict of such.
    """
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return {_KEY: "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, ShardedTensor):
        while name in tensors:  # of another key, as 1 and "1", or "a/b" and "b" in "a"
            name += "'"
        tensors[name] = value
        return {_KEY: "tensor", "name": name, "framework": framework_of(value.values)}
    if is_array(value):
        return encode(ShardedTensor(value, Piece.whole(tuple(value.shape))), name, tensors)
    if isinstance(value, list | tuple):
        items = [encode(each, f"{name}/{n}", tensors) for n, each in enumerate(value)]
        return {_KEY: "tuple", "items": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        return _encode_mapping(value, name, tensors)
    raise ConfigError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be kept: "
        f"numbers, texts, bytes, arrays and lists, tuples and dicts of them can, models, "
        f"optimizers, and what has state_dict() and load_state_dict()"
    )


def _encode_mapping(value: Mapping[Any, Any], name: str, tensors: dict[str, ShardedTensor]) -> Any:
    items = [
        [encode(key, f"{name}/key {n}", tensors), encode(each, f"{name}/{key}", tensors)]
        for n, (key, each) in enumerate(value.items())
    ]
    if all(isinstance(key, str) for key in value) and _KEY not in value:
        return dict(items)
    return {_KEY: "dict", "items": items}


def decode(value: Any, like: Any, source: Source) -> Any:
    """What was encoded, with arrays of numpy or tensors of torch in memory of their own. Where
    `like` has a ShardedTensor, that piece is read into its values."""
    if isinstance(value, list):
        return [decode(each, _within(like, n), source) for n, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KEY)
    if kind is None:
        return {key: decode(each, _within(like, key), source) for key, each in value.items()}
    if kind == "bytes":
        return base64.b64decode(value["base64"])
    if kind == "tuple":
        items = enumerate(value["items"])
        return tuple(decode(each, _within(like, n), source) for n, each in items)
    if kind == "dict":
        pairs = ((_key(key, source), each) for key, each in value["items"])
        return {key: decode(each, _within(like, key), source) for key, each in pairs}
    if kind == "tensor":
        return _read(str(value["name"]), str(value["framework"]), like, source)
    raise CheckpointError(
        f"it has a value of unknown kind {kind!r}: a later version has written it"
    )


def _key(key: Any, source: Source) -> Any:
    found = decode(key, None, source)
    try:
        hash(found)
    except TypeError:
        raise CheckpointError(f"it has {found!r} as the key of a dict") from None
    return found


def _read(name: str, framework: str, like: Any, source: Source) -> Any:
    if isinstance(like, ShardedTensor):
        source.read(name, like)
        return like
    dtype, shape = source.kind(name)
    values = empty(framework, shape, dtype)
    source.read(name, ShardedTensor(values, Piece.whole(shape)))
    return values


def _within(like: Any, key: Any) -> Any:
    try:
        return like[key]
    except (TypeError, KeyError, IndexError):
        return None
