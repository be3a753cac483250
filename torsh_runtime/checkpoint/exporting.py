"""Writes parts of checkpoints as files of safetensors or torch.save(), and as directories of
Hugging Face's or torch.distributed.checkpoint's.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torsh_runtime.arrays.raw import empty
from torsh_runtime.checkpoint.reader import CheckpointReader
from torsh_runtime.checkpoint.shards import Kind, ShardedFiles
from torsh_runtime.checkpoint.tensor_file import lay_out
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.parallel.state.whole_optimizers import is_kept, whole_state

TORCH = (".pt", ".pth", ".bin")
"""Suffixes of torch's files."""
_LARGEST_FILE = 5 * 10**9


def export_state_dict(
    checkpoint: str | Path,
    file: str | Path,
    part: str = "model",
    *,
    directory_format: str | None = None,
) -> None:
    """Write the whole state of one part of a checkpoint, a model or an optimizer, to a file or a
    directory.

    A model's has the names that its load_state_dict() expects; an optimizer's is what
    tr.get_optimizer_state_dict() gives. An existing file is replaced once everything is written.

    Args:
        checkpoint: The directory of one checkpoint.
        file: The file, whose suffix decides the format: ".safetensors", or ".pt", ".pth" or ".bin"
            as torch.save() writes. With a `directory_format` a new directory.
        part: The name of the part in the state that was saved.
        directory_format: "safetensors" writes files of at most 5 GB and an index, as the hub of
            Hugging Face has them; "dcp" what torch.distributed.checkpoint loads.

    Raises:
        CheckpointError: If the checkpoint is damaged or has no such part.
        ConfigError: For a different suffix or format, a directory that is not empty, and an
            optimizer in safetensors' format, which has no place for its options.

    Example:
        ```python
        tr.checkpoint.export_state_dict(loaded.path, "model.safetensors")
        tr.checkpoint.export_state_dict(loaded.path, "optimizer.pt", part="optimizer")
        ```
    """
    target = Path(file)
    write = _writer(target, directory_format)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    with CheckpointReader(Path(checkpoint)) as reader:
        whole = _Whole(reader, part)
        if not whole.names and not whole.is_optimizer:
            raise CheckpointError(f"{checkpoint} has no tensors of a part named {part!r}")
        if whole.is_optimizer and write in (_write_tensors, _write_shards):
            raise ConfigError(
                f"{part!r} is an optimizer, whose options safetensors files cannot hold: export it "
                f"to a .pt file, or in the format dcp"
            )
        try:
            write(whole, unfinished)
            unfinished.replace(target)
        finally:
            _remove(unfinished)


class _Whole:
    """Reads the whole tensors of one part of a checkpoint."""

    def __init__(self, reader: CheckpointReader, part: str) -> None:
        self.reader, self._part = reader, part
        aliases = [name for name in reader.manifest.aliases if name.startswith(f"{part}/")]
        names = [*reader.names(f"{part}/"), *aliases]
        self.names = {name[len(part) + 1 :]: name for name in names}
        """Names in the checkpoint, by the names that are written."""
        self.is_optimizer = is_kept(reader.values.get(part))

    def state(self, tensor: Callable[[str], Any]) -> dict[str, Any]:
        """Return the state with what `tensor` returns for each name in the checkpoint."""
        if self.is_optimizer:
            return whole_state(self._part, _Tensors(self.reader, tensor), "torch")
        stored = {name: self.reader.manifest.aliases.get(to, to) for name, to in self.names.items()}
        made = {name: tensor(name) for name in dict.fromkeys(stored.values())}
        return {name: made[to] for name, to in stored.items()}


class _Tensors:
    """Gives tensors of its own in place of a checkpoint's."""

    def __init__(self, reader: CheckpointReader, tensor: Callable[[str], Any]) -> None:
        self.values, self.names, self.kind = reader.values, reader.names, reader.kind
        self.check, self.read = reader.check, reader.read
        self._tensor = tensor

    def whole(self, name: str, framework: str) -> Any:
        """Return the tensor of this name."""
        return self._tensor(name)


def _writer(target: Path, directory_format: str | None) -> Callable[[_Whole, Path], None]:
    if directory_format is not None:
        return _directory_writer(target, directory_format)
    if target.suffix == ".safetensors":
        return _write_tensors
    if target.suffix in TORCH:
        return _write_torch
    raise ConfigError(
        f"{target}: the file must end in .safetensors or {', '.join(TORCH)} to choose its format"
    )


def _directory_writer(target: Path, directory_format: str) -> Callable[[_Whole, Path], None]:
    known = {"safetensors": _write_shards, "dcp": _write_dcp}
    if directory_format not in known:
        raise ConfigError(f"a directory's format is {' or '.join(known)}, not {directory_format!r}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already and not empty: name a new directory")
    return known[directory_format]


def _remove(unfinished: Path) -> None:
    if unfinished.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.unlink(missing_ok=True)


def _write_tensors(whole: _Whole, target: Path) -> None:
    reader = whole.reader
    kinds = [(name, *reader.kind(stored)) for name, stored in whole.names.items()]
    header, places, size = lay_out(kinds, {"format": "pt"})
    with target.open("xb") as file:
        file.truncate(size)
        file.write(header)
        for name, place in places.items():
            file.seek(place.start)
            file.write(reader.read_bytes(whole.names[name]).data)
        file.flush()
        os.fsync(file.fileno())


def _write_torch(whole: _Whole, target: Path) -> None:
    import torch

    torch.save(whole.state(lambda name: whole.reader.whole(name, "torch")), target)


def _write_shards(whole: _Whole, target: Path) -> None:
    reader = whole.reader
    kinds = {name: Kind(*reader.kind(stored)) for name, stored in whole.names.items()}
    files = ShardedFiles(kinds, _LARGEST_FILE, None)
    target.mkdir()
    try:
        files.create(target)
        for name, stored in whole.names.items():
            files.write(name, reader.read_bytes(stored))
        files.finish(target, sum(math.prod(kind.shape) for kind in kinds.values()))
    finally:
        files.close()


def _write_dcp(whole: _Whole, target: Path) -> None:
    from torsh_runtime.checkpoint.dcp import write

    def kind(name: str) -> Any:
        dtype, shape = whole.reader.kind(name)
        return empty("torch", (0,), dtype).dtype, shape

    write(whole.state, kind, lambda name: whole.reader.whole(name, "torch"), target)
