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
from torsh_runtime.parallel.state.merging import GROUPS
from torsh_runtime.parallel.state.whole_optimizers import STATE

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
    """Return what a directory has of a model, at `part` or at the top, and of the optimizers beside
    it: the state of each by its name. `part` is the model's name, or its path as "app.model".

    This unpickles what the directory has, so it must come from somebody who is trusted, and may
    raise anything. Raises CheckpointError if there is no such model.
    """
    reader = FileSystemReader(directory)
    metadata = reader.read_metadata()
    kinds = metadata.state_dict_metadata
    told: dict[str, tuple[Any, ...]] = dict(metadata.planner_data or {})
    paths = {name: path for name, path in told.items() if name in kinds}  # in the state's order
    paths |= {name: (name,) for name in kinds if name not in paths}
    wanted = _wanted(paths, part)
    _check_model(directory, part, paths, wanted, kinds)
    flat = {name: _room(kinds[name]) for name in wanted}
    with _in_one_process():
        load(flat, storage_reader=reader, no_dist=True)
    found: dict[str, Any] = {}
    for name, path in wanted.items():
        _put(found, path, flat[name])
    return found


def _check_model(
    directory: Path,
    part: str,
    paths: Mapping[str, tuple[Any, ...]],
    wanted: Mapping[str, tuple[Any, ...]],
    kinds: Mapping[str, Any],
) -> None:
    """Raise CheckpointError, with the names of models, if there is none at `part`."""
    own = [name for name, path in wanted.items() if path[0] in (part, part.rpartition(".")[2])]
    if not own or any(len(wanted[each]) != 2 or not _is_tensor(kinds[each]) for each in own):
        others = [path for name, path in paths.items() if _is_tensor(kinds[name])]
        inner = [each[:-1] for each in others if STATE not in each and GROUPS not in each]
        names = sorted({repr(_joined(each)) for each in inner if each})
        raise CheckpointError(
            f"{directory} has no model named {part!r}; those that part= (--part) may name are "
            f"{', '.join(names) or 'none'}"
        )


def _joined(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _wanted(paths: Mapping[str, tuple[Any, ...]], part: str) -> dict[str, tuple[Any, ...]]:
    """Return where the wanted values belong in the state, by their names in the directory."""
    starts = (path[:end] for path in paths.values() for end in range(1, len(path)))
    model = next((each for each in starts if _joined(each) == part), None)
    if model is None:
        return {name: (part, *path) for name, path in paths.items() if len(path) == 1}
    depth = len(model)
    beside = {name: path for name, path in paths.items() if path[: depth - 1] == model[:-1]}
    groups = {path[depth - 1] for path in beside.values() if path[depth : depth + 1] == (GROUPS,)}
    return {
        name: path[depth - 1 :]
        for name, path in beside.items()
        if len(path) > depth and path[depth - 1] in {model[-1], *groups}
    }


def _is_tensor(kind: Any) -> bool:
    return isinstance(kind, TensorStorageMetadata)


def _room(kind: Any) -> Any:
    """Return memory for a tensor, and None for another value, which takes its place."""
    if _is_tensor(kind):
        return torch.empty(kind.size, dtype=kind.properties.dtype)
    return None


def _put(state: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """Put a value where it belongs in nested dicts and lists. An optimizer's state is a dict by
    numbers."""
    place: Any = state
    for key, following in pairwise(path):
        inside: Any = [] if isinstance(following, int) and key != STATE else {}
        if isinstance(place, list):
            place.extend([None] * (key + 1 - len(place)))
            place[key] = inside if place[key] is None else place[key]
            place = place[key]
        else:
            place = place.setdefault(key, inside)
    if isinstance(place, list):
        place.extend([None] * (path[-1] + 1 - len(place)))
    place[path[-1]] = value
