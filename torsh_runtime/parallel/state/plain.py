"""Encodes nested Python values that contain arrays as JSON values and tensors."""

from __future__ import annotations

import base64
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from torsh_runtime.arrays.raw import dtype_name, empty, framework_of, is_array
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.parallel.state.contents import Source

KEY = "__kept__"
"""Key that marks a dict standing for a value that JSON does not have."""
_MAPPINGS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "counter": lambda pairs: Counter(dict(pairs)),
    "ordered": OrderedDict,
}
"""Constructors of mappings by kind; mappings of other classes are decoded as dicts."""
_MAPPING_KINDS = {Counter: "counter", OrderedDict: "ordered"}
_ARRAYS = (np.ndarray, np.memmap)


def encode(value: Any, name: str, tensors: dict[str, ShardedTensor]) -> Any:
    """Return the value for JSON, and put its arrays into `tensors`.

    Their names begin with `name`. Raises ConfigError for anything but numbers, text, bytes, None,
    arrays, torch's dtypes, and lists, tuples or dicts of these.
    """
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return {KEY: "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, ShardedTensor):
        check_dense(name, value.values)
        while name in tensors:  # of another key, as 1 and "1", or "a/b" and "b" in "a"
            name += "'"
        tensors[name] = value
        return {KEY: "tensor", "name": name, "framework": framework_of(value.values)}
    if is_array(value):
        return _encode_array(value, name, tensors)
    if isinstance(value, list | tuple):
        items = [encode(each, f"{name}/{n}", tensors) for n, each in enumerate(value)]
        return {KEY: "tuple", "items": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        return _encode_mapping(value, name, tensors)
    if _is_torch_dtype(value):
        return {KEY: "dtype", "name": str(value).removeprefix("torch.")}
    raise ConfigError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be kept: "
        f"numbers, texts, bytes, arrays and lists, tuples and dicts of them can, models, "
        f"optimizers, and what has state_dict() and load_state_dict()"
    )


def check_dense(name: str, values: Any) -> None:
    """Raise ConfigError for a sparse tensor, whose bytes are not in one place."""
    layout = str(getattr(values, "layout", "torch.strided"))
    if layout != "torch.strided":
        raise ConfigError(
            f"{name} is a sparse tensor ({layout}), and only dense ones can be kept: give its "
            f"to_dense(). For sparse gradients use an optimizer with dense state, such as "
            f"SparseAdam, or SGD without momentum"
        )


def encode_number(value: Any, name: str, tensors: dict[str, ShardedTensor]) -> Any:
    """Encode like encode(), but put an array with one element into the JSON value itself."""
    if not is_array(value) or is_subclass(value) or dtype_name(value).startswith("complex"):
        return encode(value, name, tensors)
    kind = {"dtype": dtype_name(value), "framework": framework_of(value)}
    return {KEY: "number", **kind, "shape": list(value.shape), "value": value.item()}


def is_number(encoded: Any) -> bool:
    """Return whether an encoded value is a number, text or None, or an array of one element."""
    if isinstance(encoded, dict):
        return bool(encoded.get(KEY) == "number")
    return not isinstance(encoded, list)


def is_subclass(value: object) -> bool:
    """Return whether it is an array of a class that cannot be made from its elements alone."""
    if isinstance(value, np.ndarray):
        return type(value) not in _ARRAYS
    if framework_of(value) != "torch":
        return False
    from torsh_runtime.arrays import subclasses

    return subclasses.is_subclass(value)


def _encode_array(value: Any, name: str, tensors: dict[str, ShardedTensor]) -> Any:
    if not is_subclass(value):
        return encode(ShardedTensor(value, Piece.whole(tuple(value.shape))), name, tensors)
    if isinstance(value, np.ndarray):
        raise ConfigError(
            f"{name} is an array of the class {type(value).__module__}.{type(value).__qualname__}, "
            f"of which only the elements could be kept: pass numpy.asarray(value) to keep these"
        )
    from torsh_runtime.arrays.subclasses import taken_apart

    kind, parts, context = taken_apart(name, value)
    return {
        KEY: "subclass",
        "class": kind,
        "parts": {key: encode(part, f"{name}/{key}", tensors) for key, part in parts.items()},
        "context": encode(context, f"{name}/context", tensors),
        "shape": list(value.shape),
        "stride": list(value.stride()),
    }


def _is_torch_dtype(value: object) -> bool:
    kind = type(value)
    return (kind.__module__, kind.__qualname__) == ("torch", "dtype")


def _encode_mapping(value: Mapping[Any, Any], name: str, tensors: dict[str, ShardedTensor]) -> Any:
    items = [
        [encode(key, f"{name}/key {n}", tensors), encode(each, f"{name}/{key}", tensors)]
        for n, (key, each) in enumerate(value.items())
    ]
    kind = _MAPPING_KINDS.get(type(value), "dict")
    if kind == "dict" and all(isinstance(key, str) for key in value) and KEY not in value:
        return dict(items)
    return {KEY: kind, "items": items}


def decode(value: Any, like: Any, source: Source) -> Any:
    """Decode a value, with numpy's arrays or torch's tensors in memory of their own.

    Where `like` has a ShardedTensor, that piece is read into its values.
    """
    if isinstance(value, list):
        return [decode(each, _within(like, n), source) for n, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    kind = value.get(KEY)
    if kind is None:
        return {key: decode(each, _within(like, key), source) for key, each in value.items()}
    if kind == "bytes":
        return base64.b64decode(value["base64"])
    if kind == "tuple":
        items = enumerate(value["items"])
        return tuple(decode(each, _within(like, n), source) for n, each in items)
    if kind in _MAPPINGS:
        pairs = ((_key(key, source), each) for key, each in value["items"])
        found = [(key, decode(each, _within(like, key), source)) for key, each in pairs]
        return _MAPPINGS[kind](found)
    if kind == "tensor":
        return _read(str(value["name"]), str(value["framework"]), like, source)
    return _decode_array(kind, value, source)


def _decode_array(kind: Any, value: Mapping[str, Any], source: Source) -> Any:
    if kind == "number":
        made = empty(str(value["framework"]), tuple(value["shape"]), str(value["dtype"]))
        made[...] = value["value"]
        return made
    if kind == "dtype":
        return empty("torch", (), str(value["name"])).dtype
    if kind == "subclass":
        from torsh_runtime.arrays.subclasses import put_together

        parts = {key: decode(part, None, source) for key, part in value["parts"].items()}
        context = decode(value["context"], None, source)
        sizes = tuple(value["shape"]), tuple(value["stride"])
        return put_together(str(value["class"]), parts, context, *sizes)
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
    return source.whole(name, framework)


def _within(like: Any, key: Any) -> Any:
    try:
        return like[key]
    except (TypeError, KeyError, IndexError):
        return None
