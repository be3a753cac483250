"""The pace of a worker is read from its recording."""

import struct
from pathlib import Path

import pytest

from torsh_runtime.monitoring import layout
from torsh_runtime.monitoring.notes import Notebook
from torshrun.live.pace import PaceReader


@pytest.fixture
def status_file(tmp_path: Path) -> str:
    """Beside it are recordings of two workers, of whom the second has noted steps."""
    own = bytearray(layout.RECORDING_BYTES)
    notebook = Notebook(memoryview(own))
    for step in range(3):
        notebook.write("step", value=step)
        notebook.write("scalar", "step/total", 9)
    header = struct.pack("=3Q", layout.MAGIC, layout.VERSION, 2).ljust(layout.HEADER_BYTES, b"\0")
    path = str(tmp_path / "status")
    file = Path(layout.file_beside(path))
    file.write_bytes(header + bytes(layout.STRIDE) + own.ljust(layout.STRIDE, b"\0"))
    return path


def test_the_pace_of_a_worker(status_file: str) -> None:
    assert PaceReader().read(status_file, 0, 0.0) is None
    pace = PaceReader().read(status_file, 1, 0.0)
    assert pace is not None
    assert (pace.step, pace.total) == (2, 9)


def test_it_looks_once_a_second(status_file: str) -> None:
    reader = PaceReader()
    assert reader.read(status_file, 1, 5.0) is not None
    Path(layout.file_beside(status_file)).unlink()
    assert reader.read(status_file, 1, 5.9) is not None
    assert reader.read(status_file, 1, 6.0) is None


def test_what_is_no_recording_has_no_pace(tmp_path: Path) -> None:
    path = str(tmp_path / "status")
    assert PaceReader().read(path, 0, 0.0) is None
    Path(layout.file_beside(path)).write_bytes(b"\xff" * 300_000)
    assert PaceReader().read(path, 0, 0.0) is None
    Path(layout.file_beside(path)).unlink()
    Path(layout.file_beside(path)).mkdir()
    assert PaceReader().read(path, 0, 0.0) is None
