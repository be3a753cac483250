"""Makes checkpoints from files of safetensors or torch.save(), and from directories of Hugging
Face's or torch.distributed.checkpoint's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from torsh_runtime.arrays.raw import empty
from torsh_runtime.checkpoint.checkpointer import Checkpointer
from torsh_runtime.checkpoint.exporting import TORCH
from torsh_runtime.checkpoint.reader import opened_file
from torsh_runtime.checkpoint.tensor_file import read_header
from torsh_runtime.errors import CheckpointError
from torsh_runtime.parallel.state.whole_optimizers import WholeOptimizer, is_of_optimizer

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_LONGEST_INDEX = 100 << 20
_METADATA = ".metadata"


def import_state_dict(
    file: str | Path,
    directory: str | Path,
    step: int = 0,
    part: str = "model",
    *,
    trust: bool = False,
) -> None:
    """Create a checkpoint, which any ranks can load, from a file or a directory with a model.

    Args:
        file: A file: ".pt", ".pth" and ".bin" are torch's, which are read with weights_only=True,
            ".json" is the index of a model in several files, others are of safetensors. Or a
            directory: one of Hugging Face's with such files, or one of
            torch.distributed.checkpoint, of which optimizers are taken as well.
        directory: The directory of the checkpoints.
        step: The step of the checkpoint.
        part: The name of the model in the state, and in a directory of torch's, if it has names.
        trust: Whether pickles of torch.distributed.checkpoint may be loaded, which can run any
            program: pass True only for what you or people you trust have written.

    Raises:
        CheckpointError: If the file cannot be read or holds anything but tensors by name, and for a
            directory of torch.distributed.checkpoint without `trust`.

    Example:
        ```python
        tr.checkpoint.import_state_dict("Llama-3.1-8B", "checkpoints")
        tr.checkpoint.Checkpointer("checkpoints").load({"model": model})
        ```
    """
    source = Path(file)
    if (source / _METADATA).exists():
        state = _read_dcp(source, part, trust)
    elif source.is_dir() or source.suffix == ".json":
        state = {part: _read_shards(source)}
    elif source.suffix in TORCH:
        state = {part: _read_torch(source)}
    else:
        state = {part: dict(_read_tensors(source))}
    Checkpointer(directory).save(step, state)


def _read_dcp(source: Path, part: str, trust: bool) -> dict[str, Any]:
    if not trust:
        raise CheckpointError(
            f"{source} is of torch.distributed.checkpoint, and loading its pickles can run any "
            f"program: pass trust=True (--trust) if you trust who has written it"
        )
    from torsh_runtime.checkpoint.dcp import read

    found = read(source, part)
    tensors = found.pop(part, None)
    if not tensors or not _is_of_tensors(tensors):
        raise CheckpointError(f"{source} has no model named {part!r}: pass the name as part=")
    shapes = {name: tuple(each.shape) for name, each in tensors.items()}
    state: dict[str, Any] = {part: tensors}
    for name, each in found.items():
        if is_of_optimizer(each):
            state[name] = WholeOptimizer(name, each, shapes)
    return state


def _read_shards(source: Path) -> dict[str, Any]:
    """Return the tensors of a model in one file or several that an index names."""
    index = source / _INDEX if source.is_dir() else source
    if source.is_dir() and not index.exists():
        return dict(_read_tensors(source / _SINGLE))
    found: dict[str, Any] = {}
    places = _places(index)
    for file in dict.fromkeys(places.values()):
        for name, values in _read_tensors(index.parent / file):
            if places.get(name) == file:
                found[name] = values
    missing = [name for name in places if name not in found]
    if missing:
        raise CheckpointError(
            f"{index} says that {places[missing[0]]!r} has {missing[0]!r}, and it has not"
        )
    return found


def _places(index: Path) -> dict[str, str]:
    """Return the file of each tensor as an index gives it."""
    try:
        with _opened(index) as (file, size):
            if size > _LONGEST_INDEX:
                raise ValueError(f"{size} bytes are more than any index has")
            found = json.loads(file.read(size))["weight_map"]
        for name in found.values():
            if type(name) is not str or name != Path(name).name or not name.isprintable():
                raise ValueError(f"{name!r} is no name of a file beside it")
    except OSError as error:
        raise CheckpointError(f"{index} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is no index of safetensors files: {error!r}") from None
    return dict(found)


@contextmanager
def _opened(source: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file, following links, and yield it and its size. OSError otherwise."""
    with (
        opened_file(source, follows_links=True) as (descriptor, size),
        os.fdopen(os.dup(descriptor), "rb") as file,
    ):
        yield file, size


def _read_torch(source: Path) -> dict[str, Any]:
    import pickle

    import torch

    try:
        with _opened(source) as (file, _):
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{source} cannot be read: {error}") from None
    if not isinstance(tensors, dict) or not _is_of_tensors(tensors):
        raise CheckpointError(f"{source} is no dict of tensors by name, as state_dict() gives it")
    return tensors


def _is_of_tensors(state: Mapping[Any, Any]) -> bool:
    """Return whether it has nothing but torch's tensors by name."""
    import torch

    pairs = state.items()
    return all(isinstance(n, str) and isinstance(each, torch.Tensor) for n, each in pairs)


def _read_tensors(source: Path) -> Iterator[tuple[str, Any]]:
    try:
        with _opened(source) as (file, size):

            def read(start: int, length: int) -> bytes:
                file.seek(start)
                return file.read(length)

            for name, place in read_header(read, size).items():
                yield name, _tensor(place, read(place.start, place.num_bytes))
    except OSError as error:
        raise CheckpointError(f"{source} cannot be read: {error.strerror}") from None


def _tensor(place: Any, content: bytes) -> Any:
    values = empty("numpy", place.shape, place.dtype)
    elements = np.frombuffer(content, np.uint8).view(values.dtype)
    values[...] = elements.reshape(place.shape)
    return values
