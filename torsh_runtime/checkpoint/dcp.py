"""Reads and writes directories of torch.distributed.checkpoint, in one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from torsh_runtime.errors import CheckpointError

Kind = Callable[[str], tuple[torch.dtype, tuple[int, ...]]]


def write(
    state: Callable[[Callable[[str], Any]], Mapping[str, Any]],
    kind: Kind,
    read: Callable[[str], torch.Tensor],
    target: Path,
) -> None:
    """Write a state to a new directory, a tensor at a time.

    state: returns the state with what it is given for each name of a tensor. kind, read: return a
    tensor's dtype and shape, and the tensor itself.
    """
    planner = _Lazy(read)

    def without_values(name: str) -> torch.Tensor:
        dtype, shape = kind(name)
        made = torch.empty(shape, dtype=dtype, device="meta")
        planner.names[id(made)] = name
        return made

    made = dict(state(without_values))
    writer = FileSystemWriter(target, single_file_per_rank=True)
    with _in_one_process():
        save(made, storage_writer=writer, planner=planner, no_dist=True)


@contextmanager
def _in_one_process() -> Iterator[None]:
    """Ignore torch's warning that it does not use a process group in this block."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


class _Lazy(DefaultSavePlanner):
    """Reads each tensor when it is written. Attributes: names (of the tensors by their id())."""

    def __init__(self, read: Callable[[str], torch.Tensor]) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        self._read = read

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return what is to be written."""
        found = super().lookup_object(index)
        name = self.names.get(id(found))
        return found if name is None else self._read(name)


def read(directory: Path, part: str) -> dict[str, Any]:
    """Return what a directory has of a model, by its name `part` or at the top, and its optimizers:
    the state of each by name.

    This unpickles what the directory has, so it must come from somebody who is trusted. Raises
    CheckpointError for what cannot be read.
    """
    try:
        reader = FileSystemReader(directory)
        metadata = reader.read_metadata()
        paths: dict[str, tuple[Any, ...]] = dict(metadata.planner_data or {})
        kinds = metadata.state_dict_metadata
        wanted = _wanted({name: paths.get(name, (name,)) for name in kinds}, part)
        flat = {name: _room(kinds[name]) for name in wanted}
        with _in_one_process():
            load(flat, storage_reader=reader, no_dist=True)
    except Exception as error:  # a pickle may raise anything
        first = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"{directory} cannot be read: {type(error).__name__}: {first!r}"
        ) from None
    found: dict[str, Any] = {}
    for name, path in wanted.items():
        _put(found, path, flat[name])
    return found


def _wanted(paths: Mapping[str, tuple[Any, ...]], part: str) -> dict[str, tuple[Any, ...]]:
    """Return where the wanted values belong in the state, by their names in the directory."""
    groups = {path[0] for path in paths.values() if len(path) > 1 and path[1] == "param_groups"}
    own = {name: path for name, path in paths.items() if path[0] == part and len(path) > 1}
    if not own:
        own = {name: (part, *path) for name, path in paths.items() if len(path) == 1}
    return own | {name: path for name, path in paths.items() if path[0] in groups}


def _room(kind: Any) -> Any:
    """Return memory for a tensor, and None for another value, which takes its place."""
    if isinstance(kind, TensorStorageMetadata):
        return torch.empty(kind.size, dtype=kind.properties.dtype)
    return None


def _put(state: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """Put a value where it belongs in nested dicts and lists."""
    place: Any = state
    for key, following in pairwise(path):
        inside: Any = [] if isinstance(following, int) else {}
        if isinstance(place, list):
            place.extend([None] * (key + 1 - len(place)))
            place[key] = inside if place[key] is None else place[key]
            place = place[key]
        else:
            place = place.setdefault(key, inside)
    if isinstance(place, list):
        place.extend([None] * (path[-1] + 1 - len(place)))
    place[path[-1]] = value
