"""Converts models between checkpoints and plain files of safetensors or torch.save()."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from torsh_runtime.arrays.raw import empty
from torsh_runtime.checkpoint.checkpointer import Checkpointer
from torsh_runtime.checkpoint.reader import CheckpointReader, opened_file
from torsh_runtime.checkpoint.tensor_file import lay_out, read_header
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece, ShardedTensor

_TORCH = (".pt", ".pth", ".bin")


def export_state_dict(checkpoint: str | Path, file: str | Path, part: str = "model") -> None:
    """Write the whole tensors of one part of a checkpoint to a file.

    The file has the names that the model's load_state_dict() expects. An existing file is replaced
    once everything is written.

    Args:
        checkpoint: The directory of one checkpoint.
        file: The file, whose suffix decides the format: ".safetensors", or ".pt", ".pth" or ".bin"
            as torch.save() writes.
        part: The name of the part in the state that was saved.

    Raises:
        CheckpointError: If the checkpoint is damaged or has no such part.
        ConfigError: For a different suffix.

    Example:
        ```python
        tr.checkpoint.export_state_dict(loaded.path, "model.safetensors")
        ```
    """
    target = Path(file)
    write = _writer(target)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    with CheckpointReader(Path(checkpoint)) as reader:
        names = {name[len(part) + 1 :]: name for name in _names(reader, part)}
        if not names:
            raise CheckpointError(f"{checkpoint} has no tensors of a part named {part!r}")
        try:
            write(reader, names, unfinished)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)


def import_state_dict(
    file: str | Path, directory: str | Path, step: int = 0, part: str = "model"
) -> None:
    """Create a checkpoint, which any ranks can load, from a file with a model's tensors.

    torch's files are read with weights_only=True.

    Args:
        file: The file; ".pt", ".pth" and ".bin" are torch's, others safetensors.
        directory: The directory of the checkpoints.
        step: The step of the checkpoint.
        part: The name of the model in the state.

    Raises:
        CheckpointError: If the file cannot be read or holds anything but tensors by name.

    Example:
        ```python
        tr.checkpoint.import_state_dict("model.safetensors", "checkpoints")
        tr.checkpoint.Checkpointer("checkpoints").load({"model": model})
        ```
    """
    source = Path(file)
    tensors = _read_torch(source) if source.suffix in _TORCH else dict(_read_tensors(source))
    Checkpointer(directory).save(step, {part: tensors})


def _names(reader: CheckpointReader, part: str) -> list[str]:
    aliases = [name for name in reader.manifest.aliases if name.startswith(f"{part}/")]
    return [*reader.names(f"{part}/"), *aliases]


def _writer(target: Path) -> Any:
    if target.suffix == ".safetensors":
        return _write_tensors
    if target.suffix in _TORCH:
        return _write_torch
    raise ConfigError(
        f"{target}: the file must end in .safetensors or {', '.join(_TORCH)} to choose its format"
    )


def _write_tensors(reader: CheckpointReader, names: Mapping[str, str], target: Path) -> None:
    kinds = [(name, *reader.kind(stored)) for name, stored in names.items()]
    header, places, size = lay_out(kinds, {"format": "pt"})
    with target.open("xb") as file:
        file.truncate(size)
        file.write(header)
        for name, place in places.items():
            file.seek(place.start)
            file.write(reader.read_bytes(names[name]).data)
        file.flush()
        os.fsync(file.fileno())


def _write_torch(reader: CheckpointReader, names: Mapping[str, str], target: Path) -> None:
    import torch

    tensors: dict[str, Any] = {}
    for name, stored in names.items():
        stored = reader.manifest.aliases.get(stored, stored)
        if stored not in tensors:
            dtype, shape = reader.kind(stored)
            tensors[stored] = empty("torch", shape, dtype)
            reader.read(stored, ShardedTensor(tensors[stored], Piece.whole(shape)))
        tensors[name] = tensors[stored]
    torch.save({name: tensors[name] for name in names}, target)


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
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(each, torch.Tensor) for name, each in tensors.items()
    ):
        raise CheckpointError(f"{source} is no dict of tensors by name, as state_dict() gives it")
    return tensors


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
