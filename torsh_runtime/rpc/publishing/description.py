"""The layout of a published state in a slot: the places of its arrays, and the rest of the state.

A slot has the bytes of all arrays, and then a text: the length of a manifest, the manifest, which
says where each array is placed, and the state as JSON with the arrays' names in place of the
arrays. Versions with arrays of the same shapes have the same manifest.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from torsh_runtime.checkpoint.manifest import Manifest, StoredFile, StoredPiece, StoredTensor
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.parallel.state.contents import Contents
from torsh_runtime.parallel.state.models import ModelState, is_model
from torsh_runtime.parallel.state.plain import KEY, encode

ROOT = "state"
"""The names of all arrays begin with it: "state/encoder/weight" is state["encoder"]["weight"]."""
SLOT = "slot"
"""The manifest's name for the slot."""
_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")

Placed = dict[str, tuple[str, tuple[int, ...], int]]
"""Dtype, shape and place of the first byte in the slot, by name of the array."""


class SlotPlan(NamedTuple):
    """A state that is about to be written to a slot."""

    tree: Any
    """The state as JSON, with the arrays' names in place of the arrays."""
    placed: Placed
    sources: tuple[tuple[int, int, Any], ...]
    """The place of each array, its size in bytes, and the array. Arrays that share memory share a
    place."""
    num_bytes: int
    """Bytes of all arrays together."""


def plan(name: str, state: Any) -> SlotPlan:
    """Return the plan for writing a state to a slot. Raises ConfigError, naming what cannot be
    published."""
    tensors: dict[str, ShardedTensor] = {}
    if is_model(state):
        tree = _tree_of_model(state, tensors)
    elif isinstance(state, Mapping):
        tree = encode(state, ROOT, tensors)
    else:
        raise ConfigError(
            f"publish({name!r}) takes a dict of arrays or a model, not a "
            f"{type(state).__module__}.{type(state).__qualname__}"
        )
    placed: Placed = {}
    places: dict[Any, int] = {}
    sources: list[tuple[int, int, Any]] = []
    end = 0
    for key, each in tensors.items():
        dtype, shape = _checked(key, each)
        size = each.piece.size * ITEMSIZES[dtype]
        memory = _memory_key(each.values) if size else None
        start = places.get(memory, end) if memory else end
        placed[key] = dtype, shape, start
        if start == end:
            sources.append((start, size, each.values))
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
            if memory:
                places[memory] = start
    return SlotPlan(tree, placed, tuple(sources), end)


def manifest_of(placed: Placed, num_bytes: int) -> bytes:
    """Return the manifest as it is stored in the slot's text."""
    tensors = {
        name: StoredTensor(dtype, shape, (StoredPiece(SLOT, start, Piece.whole(shape)),))
        for name, (dtype, shape, start) in placed.items()
    }
    files = {SLOT: StoredFile(num_bytes, max(num_bytes, 1), (0,) * bool(num_bytes))}
    return Manifest(0, 1, 0.0, tensors, {}, {}, files).to_bytes()


def text_of(manifest: bytes, tree: Any) -> bytes:
    """Return the text that follows the arrays in a slot."""
    return _LENGTH.pack(len(manifest)) + manifest + json.dumps(tree).encode()


def split(text: bytes) -> tuple[bytes, Any]:
    """Return the manifest and the state of a text that text_of() made. Raises CheckpointError for a
    text of another version."""
    try:
        (length,) = _LENGTH.unpack_from(text)
        end = _LENGTH.size + length
        return text[_LENGTH.size : end], json.loads(text[end:])
    except (ValueError, struct.error, RecursionError) as error:
        raise CheckpointError(f"a published version makes no sense: {error!r}") from None


def child(tree: Any, key: Any) -> Any:
    """Return the value of a mapping under the key. Raises KeyError if there is none, or if `tree`
    is no mapping."""
    if not isinstance(tree, dict):
        raise KeyError(key)
    if KEY not in tree:
        return tree[key]
    for each, value in items(tree):
        if each == key:
            return value
    raise KeyError(key)


def items(tree: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and values of a mapping, and nothing for anything else."""
    if KEY not in tree:
        yield from tree.items()
    elif tree[KEY] in ("dict", "ordered", "counter"):
        yield from map(tuple, tree["items"])


def paths(tree: Any, name: str = ROOT) -> Iterator[tuple[str, Any]]:
    """Yield everything that mappings with text keys lead to, with the names that arrays there
    have."""
    yield name, tree
    if isinstance(tree, dict):
        for key, value in items(tree):
            yield from paths(value, f"{name}/{key}")


def _tree_of_model(model: Any, tensors: dict[str, ShardedTensor]) -> Any:
    """Return the tree of the model's state_dict(), under the names of the model inside any
    wrappers."""
    contents = Contents()
    ModelState(ROOT, model).keep(contents)
    aliases = {name: contents.tensors[of] for name, of in contents.aliases.items()}
    tree: dict[str, Any] = {}
    within = tuple(f"{name}/" for name in contents.values)
    for name, each in {**contents.tensors, **aliases}.items():
        if name.startswith(within):
            tensors[name] = each
        else:
            tree[name.removeprefix(f"{ROOT}/")] = encode(each, name, tensors)
    for name, value in contents.values.items():
        tree[name.removeprefix(f"{ROOT}/")] = value
    return tree


def _checked(name: str, tensor: ShardedTensor) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and shape of an array. Raises ConfigError if it cannot be published."""
    path, dtype = name.removeprefix(f"{ROOT}/"), _dtype_name(tensor.values.dtype)
    if not tensor.piece.is_whole:
        raise ConfigError(
            f"{path!r} is a piece of a tensor, and the other ranks have the rest: publish what "
            f"state_dict() of the whole model gives, on the rank that has it"
        )
    if dtype not in ITEMSIZES:
        raise ConfigError(
            f"{path!r} is of dtype {dtype}, which cannot be published: these can be, "
            f"{', '.join(ITEMSIZES)}"
        )
    if str(getattr(tensor.values, "layout", "torch.strided")) != "torch.strided":
        raise ConfigError(f"{path!r} is a sparse tensor: publish its to_dense()")
    if getattr(getattr(tensor.values, "device", None), "type", "") == "meta":
        raise ConfigError(f"{path!r} is on the meta device and has no values")
    return dtype, tensor.piece.global_shape


@lru_cache(maxsize=64)
def _dtype_name(dtype: Any) -> str:
    """Return what dtype_name() does, which takes long for dtypes of numpy."""
    return str(dtype).removeprefix("torch.")


def _memory_key(values: Any) -> Any:
    """Return a key that is equal for arrays that are the same memory. None if that cannot be
    known."""
    if hasattr(values, "data_ptr"):
        memory: Any = values.data_ptr()
        return memory and (memory, values.dtype, tuple(values.shape), values.stride())
    facts = getattr(values, "__array_interface__", None)
    if facts is None:
        return None
    return facts["data"][0], values.dtype, values.shape, facts["strides"]
