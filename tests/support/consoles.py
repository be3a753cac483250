"""A log pump whose outputs end in pipes that the test reads."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig
from torshrun.safe_files import Folder
from torshrun.workers.logs.pump import LogPump
from torshrun.workers.logs.stream import Stream

Write = Callable[[bytes], int]


class Console:
    """Everything that is opened here is closed by close()."""

    def __init__(
        self,
        output: OutputConfig,
        folder: Path,
        one: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """With `one`, stdout and stderr are the same pipe."""
        self.folder = folder
        self.out, out_end = os.pipe()
        self.err, err_end = (self.out, out_end) if one else os.pipe()
        self._ends = {out_end, err_end}
        self._held = Folder(str(folder), os.open(folder, os.O_RDONLY))
        self.pump = LogPump(output, self._held, out_end, err_end, environ or {})
        self.streams: list[tuple[Stream, ...]] = []
        self._ended = False

    def worker(self, rank: int, attempt: int = 0) -> tuple[Write, Write]:
        """What writes to this worker's stdout and stderr."""
        place = WorkerEnv(rank=rank, world_size=8, local_rank=rank, local_world_size=8)
        folder = self.folder / f"attempt_{attempt}" / str(rank)
        streams = self.pump.open(place, str(folder))
        self.streams.append(streams)
        return (
            lambda data: os.write(streams[0].source.end, data),
            lambda data: os.write(streams[-1].source.end, data),
        )

    def read_out(self) -> bytes:
        """What comes next on stdout."""
        return _read_soon(self.out)

    def read_err(self) -> bytes:
        """What comes next on stderr."""
        return _read_soon(self.err)

    def kept(self, name: str) -> bytes:
        """A file of the first attempt."""
        return (self.folder / "attempt_0" / name).read_bytes()

    def finish(self) -> tuple[bytes, bytes]:
        """End all workers, and give what is left on stdout and stderr."""
        readers = {fd: Reader(fd) for fd in {self.out, self.err}}
        self.end()
        read = {fd: reader.join() for fd, reader in readers.items()}
        return read[self.out], read[self.err]

    def end(self) -> None:
        """End all workers and the pump; readers then come to their end."""
        self._ended = True
        for stream in chain.from_iterable(self.streams):
            os.close(stream.source.end)
        self.pump.close()
        assert self.pump.is_closed(10)
        self._held.close()
        for fd in self._ends:
            os.close(fd)

    def close(self) -> None:
        if not self._ended:
            self.finish()
        for fd in {self.out, self.err}:
            os.close(fd)


class Reader:
    """Reads a pipe to its end in a thread, so that nobody waits for it."""

    def __init__(self, fd: int) -> None:
        self.data = bytearray()
        self._fd = fd
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._fd, 65536):
            self.data += chunk

    def join(self) -> bytes:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return bytes(self.data)


def _read_soon(fd: int) -> bytes:
    assert select.select([fd], [], [], 10)[0], "nothing came"
    return os.read(fd, 65536)


def fill(fd: int, line: bytes) -> int:
    """Write lines until nobody takes more; how many bytes there were."""
    os.set_blocking(fd, False)
    total = idle = 0
    while idle < 20:
        try:
            total += os.write(fd, line)
            idle = 0
        except BlockingIOError:
            idle += 1
            time.sleep(0.005)
    return total
