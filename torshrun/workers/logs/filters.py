"""Lines that contain what somebody looks for, copied to a file of their own."""

from __future__ import annotations

from torshrun.workers.logs.files import SharedFile
from torshrun.workers.logs.lines import LONGEST, end_of_lines


class LineFilter:
    """Picks one stream's lines. A line of more than LONGEST bytes counts as several. Used by one
    thread only.
    """

    def __init__(self, needles: tuple[bytes, ...], prefix: bytes, file: SharedFile) -> None:
        self._needles = needles
        self._prefix = prefix
        self._file = file
        self._partial = b""
        self._stamp = b""

    def feed(self, data: bytes, stamp: bytes) -> None:
        """Pick from the lines that end in `data`, or have grown too long."""
        data = self._partial + data
        cut = end_of_lines(data)
        if len(data) - cut >= LONGEST:
            cut = len(data)
        self._partial = data[cut:]
        self._stamp = stamp
        self._pick(data[:cut])

    def close(self) -> None:
        """Pick from what is left."""
        data, self._partial = self._partial, b""
        self._pick(data)

    def _pick(self, data: bytes) -> None:
        if not self._is_wanted(data):
            return
        head = self._stamp + self._prefix
        lines = data.replace(b"\r", b"\n").split(b"\n")
        chosen = [head + line + b"\n" for line in lines if line and self._is_wanted(line)]
        self._file.write(b"".join(chosen))

    def _is_wanted(self, data: bytes) -> bool:
        return any(needle in data for needle in self._needles)
