"""Files of tensors are what the package safetensors reads and writes."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.checkpoint.tensor_file import ITEMSIZES, check_dtype, lay_out, read_header
from torsh_runtime.errors import CheckpointError

NAMES = [name for name in ITEMSIZES if not name.startswith(("bfloat", "float8"))]


def test_the_package_reads_what_is_laid_out(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    tensors = {name: np.arange(6).astype(name).reshape(2, 3) for name in NAMES}
    tensors |= {"empty": np.zeros((0, 4), np.float32), "scalar": np.array(2.5)}
    kinds = [(name, each.dtype.name, each.shape) for name, each in tensors.items()]
    header, places, size = lay_out(kinds, {"format": "pt"})
    content = bytearray(size)
    content[: len(header)] = header
    for name, place in places.items():
        assert place.start % ITEMSIZES[place.dtype] == 0
        content[place.start : place.start + place.num_bytes] = tensors[name].tobytes()
    (tmp_path / "file").write_bytes(content)
    with safetensors.safe_open(tmp_path / "file", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        for name, tensor in tensors.items():
            found = file.get_tensor(name)
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            np.testing.assert_array_equal(found, tensor)


def test_what_the_package_writes_is_read() -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    tensors = {
        name: np.arange(6).astype(name).reshape(2, 3) for name in NAMES if "plex" not in name
    }
    content = numpy.save(tensors)
    places = read_header(lambda start, length: content[start : start + length], len(content))
    for name, tensor in tensors.items():
        place = places[name]
        found = content[place.start : place.start + place.num_bytes]
        assert (place.dtype, place.shape) == (tensor.dtype.name, tensor.shape)
        assert found == tensor.tobytes()


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}},
        {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]}},
        {"a": {"dtype": "F32", "shape": [200], "data_offsets": [0, 800]}},
        {"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}},
        {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in "ab"},
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        },
        {"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": "ab"}},
        {"a": 3},
        [],
        "[" * 100_000,
    ],
)
def test_a_header_that_lies_is_refused(header: object) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    content = io.BytesIO(struct.pack("<Q", len(text)) + text + bytes(16))

    def read(start: int, length: int) -> bytes:
        content.seek(start)
        return content.read(length)

    with pytest.raises(CheckpointError, match="no safetensors file"):
        read_header(read, content.getbuffer().nbytes)


def test_tensors_without_elements_may_begin_where_others_do() -> None:
    places = {"a": (2, [0, 8]), "b": (0, [0, 0]), "c": (0, [4, 4]), "d": (1, [8, 12])}
    told = {
        name: {"dtype": "F32", "shape": [size], "data_offsets": each}
        for name, (size, each) in places.items()
    }
    text = json.dumps(told).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(12)
    found = read_header(lambda start, n: content[start : start + n], len(content))
    assert {*found} == {*places}


@given(st.binary(max_size=64))
def test_noise_is_refused_or_empty(content: bytes) -> None:
    try:
        found = read_header(lambda start, n: content[start : start + n], len(content))
    except CheckpointError:
        return
    assert found == {}


def test_a_dtype_that_the_format_has_not_is_named() -> None:
    with pytest.raises(CheckpointError, match="'weight' is of dtype complex128"):
        check_dtype("weight", "complex128")
