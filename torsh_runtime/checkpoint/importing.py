"""Makes checkpoints from files of safetensors or torch.save(), and from directories of Hugging
Face's or torch.distributed.checkpoint's.
"""

from __future__ import annotations

import json
import os
import warnings
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
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.parallel.state.merging import GROUPS
from torsh_runtime.parallel.state.whole_optimizers import (
    STATE,
    WholeOptimizer,
    by_names,
    is_kept,
    is_of_optimizer,
)

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_LONGEST_INDEX = 100 << 20
_METADATA = ".metadata"
_OF_BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")
"""Ends of the names of buffers, which optimizers do not have."""
_BY_NAMES = "save it by names, as torch's get_optimizer_state_dict() gives it"


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
        part: The name of the model in the state, and in a directory of torch's, if it has names. In
            such a directory it may be a path, as "app.model", whose last name the state has.
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

    with _unpickling(source):
        found = read(source, part)
        name = part if part in found else part.rpartition(".")[2]
        tensors = found.pop(name)
        return {name: tensors, **dict(_optimizers(source, found, tensors))}


def _optimizers(
    source: Path, found: Mapping[str, Any], tensors: Mapping[str, Any]
) -> Iterator[tuple[str, WholeOptimizer]]:
    """Yield the optimizers of the model with these tensors, and warn of those that are left out."""
    shapes = {name: tuple(each.shape) for name, each in tensors.items()}
    for name, each in found.items():
        state = {STATE: {}, **each} if is_kept(each) else each  # as before the first step
        if is_of_optimizer(state):
            try:
                yield name, WholeOptimizer(name, _by_names(state, shapes), shapes)
            except ConfigError as error:
                text = f"{source}: the optimizer {name!r} is left out: {error}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)


def _by_names(state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Any]:
    """Return the state of an optimizer by the names of parameters. Raises ConfigError if it is not
    known whose state it is."""
    groups = state[GROUPS]
    if any(isinstance(each, int) for group in groups for each in group["params"]):
        return _named(state, shapes)
    strangers = [each for each in state[STATE] if each not in shapes]
    if strangers:
        raise ConfigError(f"it has state of {strangers[0]!r}, which the model does not have")
    return state


def _named(state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Any]:
    """Return state by numbers under the names that its groups have, or in the order of the model's
    parameters."""
    groups = state[GROUPS]
    names = [each for group in groups for each in group.get("param_names", ())]
    if not names and len(groups) > 1:
        raise ConfigError(f"its state is by numbers, in {len(groups)} groups; {_BY_NAMES}")
    names = names or [each for each in shapes if not each.endswith(_OF_BATCH_NORM)]
    numbered = {int(key): each for key, each in state[STATE].items()}
    named = by_names({STATE: numbered, GROUPS: groups}, names)
    for name, each in named[STATE].items():
        for key, value in each.items():
            if name not in shapes or (np.ndim(value) and value.shape != shapes[name]):
                raise ConfigError(
                    f"its state is by numbers, and {key!r} does not fit {name!r}; {_BY_NAMES}"
                )
    return named


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
    import torch

    with _unpickling(source), _opened(source) as (file, _):
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict) or not _is_of_tensors(tensors):
        raise CheckpointError(f"{source} is no dict of tensors by name, as state_dict() gives it")
    for name, each in tensors.items():
        if each.layout is not torch.strided or each.is_meta or each.is_quantized:
            kind = "has no values" if each.is_meta else "is sparse or quantized"
            raise CheckpointError(f"{source}: {name!r} {kind}, and only dense tensors are kept")
    return tensors


@contextmanager
def _unpickling(source: Path) -> Iterator[None]:
    """Raise CheckpointError, in a line, for whatever this block raises: a pickle may raise anything
    if it is damaged."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"{source} cannot be read: {type(error).__name__}: {first!r}"
        ) from None


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
