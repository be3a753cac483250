"""Reads the requested bytes of a checkpoint and verifies them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from torsh_runtime.checkpoint.manifest import NAME, Manifest, StoredFile
from torsh_runtime.checkpoint.pieces import Bytes, DamagedCheckpoint, PieceReader
from torsh_runtime.errors import CheckpointError

_LONGEST_MANIFEST = 1 << 30


class CheckpointReader(PieceReader):
    """Reads one checkpoint. A file is opened when something in it is read.

    Example:
        ```python
        with tr.checkpoint.CheckpointReader(loaded.path) as reader:
            print(reader.names("model/"))
            reader.verify()
        ```
    """

    def __init__(self, path: Path) -> None:
        """Open the checkpoint at `path` and check its manifest and the sizes of its files.

        Args:
            path: The checkpoint's directory, a pathlib.Path.

        Raises:
            DamagedCheckpoint: If the manifest cannot be read, or if a file is missing or does not
                have the size that it had when it was written.
        """
        self.path, self.where = path, str(path)
        self._files: dict[str, _BlockFile] = {}
        try:
            with opened_file(path / NAME) as (descriptor, size):
                if size > _LONGEST_MANIFEST:
                    raise OSError(0, f"{size} bytes are more than any has")
                text = _pread(descriptor, 0, size)
        except OSError as error:
            raise DamagedCheckpoint(f"{path}: {NAME} cannot be read: {error.strerror}") from None
        try:
            self.manifest = Manifest.from_bytes(text)
            self.manifest.check_whole()
        except CheckpointError as error:
            raise DamagedCheckpoint(f"{path}: {error}") from None
        for name, told in self.manifest.files.items():
            self._check_size(name, told)

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._files.values():
            each.close()
        self._files.clear()

    def read_file(self, file: str, start: int, target: Bytes) -> None:
        """Fill an array with a file's bytes.

        Args:
            file: The file's name in the checkpoint.
            start: The offset of the first byte.
            target: An array of uint8.

        Raises:
            DamagedCheckpoint: If the bytes have changed.
        """
        self._file(file).read(start, target)

    def verify(self) -> None:
        """Read and check everything.

        Raises:
            DamagedCheckpoint: For the first changed file.

        Example:
            ```python
            with tr.checkpoint.CheckpointReader(loaded.path) as reader:
                reader.verify()
            ```
        """
        for name, told in self.manifest.files.items():
            scratch = np.empty(min(told.block, told.num_bytes), np.uint8)
            for start in range(0, told.num_bytes, told.block):
                self._file(name).read(start, scratch[: min(told.block, told.num_bytes - start)])

    def _check_size(self, name: str, told: StoredFile) -> None:
        try:
            size = (self.path / name).lstat().st_size
        except OSError as error:
            raise DamagedCheckpoint(f"{self.path}: {name}: {error.strerror}") from None
        if size != told.num_bytes:
            raise DamagedCheckpoint(
                f"{self.path}: {name} has {size} bytes, and had {told.num_bytes} when written"
            )

    def _file(self, name: str) -> _BlockFile:
        if name not in self._files:
            self._files[name] = _BlockFile(self.path / name, self.manifest.files[name])
        return self._files[name]


class _BlockFile:
    """Reads a file and checks each block when something in it is read."""

    def __init__(self, path: Path, told: StoredFile) -> None:
        self._path = path
        self._told = told
        self._cached = -1
        self._open = ExitStack()
        self._scratch = np.empty(min(told.block, told.num_bytes), np.uint8)
        try:
            self._descriptor, size = self._open.enter_context(opened_file(path))
        except OSError as error:
            raise DamagedCheckpoint(f"{path}: {error.strerror}") from None
        if size != told.num_bytes:
            raise DamagedCheckpoint(f"{path}: it changes while it is read")

    def close(self) -> None:
        """Close the file, which cannot be read afterwards."""
        self._open.close()

    def read(self, start: int, target: Bytes) -> None:
        """Fill the target with the bytes from offset `start` on."""
        block, done = self._told.block, 0
        while done < target.size:
            number, skipped = divmod(start + done, block)
            whole = min(block, self._told.num_bytes - number * block)
            length = min(whole - skipped, target.size - done)
            here = target[done : done + length]
            if length == whole:
                self._read_block(number, here)
            else:
                here[:] = self._block(number)[skipped : skipped + length]
            done += length

    def _block(self, number: int) -> Bytes:
        if number != self._cached:
            self._cached = -1
            size = min(self._told.block, self._told.num_bytes - number * self._told.block)
            self._read_block(number, self._scratch[:size])
            self._cached = number
        return self._scratch

    def _read_block(self, number: int, target: Bytes) -> None:
        start = number * self._told.block
        try:
            _pread_into(self._descriptor, start, target)
        except OSError as error:
            raise DamagedCheckpoint(f"{self._path}: {error.strerror}") from None
        if xxh3_64_intdigest(target.data) != self._told.checksums[number]:
            raise DamagedCheckpoint(
                f"{self._path}: bytes {start} to {start + target.size} are not those that were "
                f"written"
            )


@contextmanager
def opened_file(path: Path, *, follows_links: bool = False) -> Iterator[tuple[int, int]]:
    """Open a regular file and yield its descriptor and size.

    Links are refused unless `follows_links`. Raises OSError for anything else, such as a pipe;
    opening it does not wait for its other end.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags | (0 if follows_links else os.O_NOFOLLOW))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no regular file")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def _pread(descriptor: int, start: int, length: int) -> bytes:
    target = np.empty(length, np.uint8)
    _pread_into(descriptor, start, target)
    return target.tobytes()


def _pread_into(descriptor: int, start: int, target: Bytes) -> None:
    done = 0
    while done < target.size:
        got = os.preadv(descriptor, [target.data[done:]], start + done)
        if not got:
            raise OSError(0, "it ends too early")
        done += got
