"""Where the arrays of a state lie in a slot, and what else the state has: arithmetic and JSON.

A slot has the bytes of all arrays, and then a text: the length of a manifest, the manifest, which
says where each array lies, and the state with the arrays' names in place of the arrays. Of
versions with arrays of the same shapes the manifests are the same.
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
"""What a manifest calls the slot."""
_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")

Placed = dict[str, tuple[str, tuple[int, ...], int]]
"""By the names of arrays: dtype, shape, and the place of the first byte in the slot."""


class SlotPlan(NamedTuple):
    """A state that is about to be written to a slot."""

    tree: Any
    """The state as JSON, with the arrays' names in place of the arrays."""
    placed: Placed
    sources: tuple[tuple[int, int, Any], ...]
    """Where each array goes, its bytes, and itself. Those that are one memory go to one place."""
    num_bytes: int
    """Of all arrays."""


def plan(name: str, state: Any) -> SlotPlan:
    """ConfigError, naming what cannot be published."""
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
    """The manifest, as it stands in the text."""
    tensors = {
        name: StoredTensor(dtype, shape, (StoredPiece(SLOT, start, Piece.whole(shape)),))
        for name, (dtype, shape, start) in placed.items()
    }
    files = {SLOT: StoredFile(num_bytes, max(num_bytes, 1), (0,) * bool(num_bytes))}
    return Manifest(0, 1, 0.0, tensors, {}, {}, files).to_bytes()


def text_of(manifest: bytes, tree: Any) -> bytes:
    """What a slot has behind the arrays."""
    return _LENGTH.pack(len(manifest)) + manifest + json.dumps(tree).encode()


def split(text: bytes) -> tuple[bytes, Any]:
    """The counterpart of text_of(). CheckpointError for what another version has written."""
    try:
        (length,) = _LENGTH.unpack_from(text)
        end = _LENGTH.size + length
        return text[_LENGTH.size : end], json.loads(text[end:])
    except (ValueError, struct.error, RecursionError) as error:
        raise CheckpointError(f"a published version makes no sense: {error!r}") from None


def child(tree: Any, key: Any) -> Any:
    """What a mapping has under the key. KeyError if it has none, or is no mapping."""
    if not isinstance(tree, dict):
        raise KeyError(key)
    if KEY not in tree:
        return tree[key]
    for each, value in items(tree):
        if each == key:
            return value
    raise KeyError(key)


def items(tree: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The keys and values of a mapping; nothing for anything else."""
    if KEY not in tree:
        yield from tree.items()
    elif tree[KEY] in ("dict", "ordered", "counter"):
        yield from map(tuple, tree["items"])


def paths(tree: Any, name: str = ROOT) -> Iterator[tuple[str, Any]]:
    """All that mappings of texts lead to, by the names that arrays there have."""
    yield name, tree
    if isinstance(tree, dict):
        for key, value in items(tree):
            yield from paths(value, f"{name}/{key}")


def _tree_of_model(model: Any, tensors: dict[str, ShardedTensor]) -> Any:
    """As that of its state_dict(), under the names of the model that wrappers are around."""
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
    """Dtype and shape of an array that can be published."""
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
    """As dtype_name() has it, which takes long for dtypes of numpy."""
    return str(dtype).removeprefix("torch.")


def _memory_key(values: Any) -> Any:
    """What arrays have in common that are the same memory; None if that cannot be told."""
    if hasattr(values, "data_ptr"):
        memory: Any = values.data_ptr()
        return memory and (memory, values.dtype, tuple(values.shape), values.stride())
    facts = getattr(values, "__array_interface__", None)
    if facts is None:
        return None
    return facts["data"][0], values.dtype, values.shape, facts["strides"]
