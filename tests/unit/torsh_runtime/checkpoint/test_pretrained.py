"""Tensors that are read when they are needed, and files that are written a tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if not find_spec("torch"):
    pytest.skip("needs torch", allow_module_level=True)
import torch

from torsh_runtime.checkpoint.pretrained.lazy import Lazy
from torsh_runtime.checkpoint.pretrained.sources import WeightFiles
from torsh_runtime.checkpoint.shards import Kind, ShardedFiles, size_of
from torsh_runtime.checkpoint.tensor_file import read_header
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece
from torsh_runtime.parallel.layouts import cut

pytestmark = pytest.mark.torch

Tensors = list[Any]
CONVERSIONS: dict[str, Callable[[Tensors], Any]] = {
    "one": lambda each: each[0][...].to(device="cpu", dtype=torch.float64).contiguous(),
    "rows": lambda each: torch.cat([each[0], each[1], each[2]], dim=0),
    "columns": lambda each: torch.cat(each, 1),
    "experts": lambda each: torch.stack(each, dim=0),
    "fused experts": lambda each: torch.cat(
        [torch.stack(each[:2], dim=0), torch.stack(each[2:4], dim=0)], dim=1
    ),
    "turned": lambda each: torch.stack([x.t() for x in each[:2]]).transpose(1, 2).contiguous().mT,
    "a third": lambda each: torch.chunk(each[0], 3, dim=0)[1],
    "split": lambda each: each[1].split([1, 3], 1)[1].clone(),
    "woven": lambda each: each[0].reshape(3, 2, 4).transpose(0, 1).reshape(6, 4),
    "computed": lambda each: (each[0] + each[1] * 2).T,
}


def tensors(read: list[int]) -> tuple[Tensors, Tensors]:
    """Ordinary ones and lazy ones, which note how many elements are read."""
    plain = [torch.arange(24.0).view(6, 4) + 100 * number for number in range(4)]

    def lazy(number: int, values: torch.Tensor) -> Lazy:
        def pull(spans: Any) -> torch.Tensor:
            found = cut(values, Piece.of_spans(tuple(values.shape), spans))
            read.append(found.numel())
            return found

        return Lazy.of(values.shape, values.dtype, str(number), pull)

    return plain, [lazy(number, values) for number, values in enumerate(plain)]


@pytest.mark.parametrize("name", CONVERSIONS)
def test_parts_of_what_is_converted_are_those_of_all(name: str) -> None:
    plain, lazies = tensors([])
    expected, found = CONVERSIONS[name](plain), CONVERSIONS[name](lazies)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert torch.equal(found.values(), expected)
    for dim, size in enumerate(expected.shape):
        spans: list[Any] = [((0, each),) for each in expected.shape]
        spans[dim] = ((0, 1), (size - 1, size))
        piece = Piece.of_spans(tuple(expected.shape), spans)
        assert torch.equal(found.values(piece), cut(expected, piece))


@pytest.mark.parametrize("name", ["rows", "columns", "fused experts", "turned", "a third", "split"])
def test_no_more_is_read_than_is_wanted(name: str) -> None:
    read: list[int] = []
    found = CONVERSIONS[name](tensors(read)[1])
    for dim, size in enumerate(found.shape):
        read.clear()
        spans: list[Any] = [((0, each),) for each in found.shape]
        spans[dim] = ((0, size // 2),)
        assert sum(read) == 0
        assert found.values(Piece.of_spans(tuple(found.shape), spans)).numel() == sum(read)


def test_what_would_write_to_a_lazy_tensor_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"add_\(\) would write to a tensor that is not read yet"):
        tensors([])[1][0].add_(1)
    with pytest.raises(ConfigError, match="there are no values"):
        Lazy.of((2,), torch.float32, "a", None).values()


def test_files_are_divided_and_indexed(tmp_path: Path) -> None:
    values = {
        name: torch.randn(size) for name, size in (("a", 10), ("b", 60), ("c", 10), ("d", 20))
    }
    kinds = {name: Kind("float32", tuple(each.shape)) for name, each in values.items()}
    files = ShardedFiles(kinds, 100, None)
    assert files.names == [f"model-0000{at}-of-00003.safetensors" for at in (1, 2, 3)]
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "model-00001-of-00009.safetensors").touch()
    (tmp_path / "model-00001-of-00003.safetensors.mine").touch()
    files.create(tmp_path)
    for name in ("d", "b", "a", "c"):
        files.write(name, values[name])
    files.finish(tmp_path, 100)
    assert {each.name for each in files.stale(tmp_path)} == {
        "model.safetensors",
        "model-00001-of-00009.safetensors",
    }
    index = json.loads((tmp_path / files.index).read_text())
    assert index["metadata"] == {"total_parameters": 100, "total_size": 400}
    where = index["weight_map"]
    assert where["a"] == where["c"] == files.names[1]
    assert (where["b"], where["d"]) == (files.names[0], files.names[2])
    again = WeightFiles(tmp_path / name for name in files.names)
    assert all(torch.equal(again.tensors[name].values(), each) for name, each in values.items())
    assert again.num_bytes == 400
    again.close()


def test_one_file_needs_no_index(tmp_path: Path) -> None:
    files = ShardedFiles({"a": Kind("bfloat16", (2, 0)), "b": Kind("int64", ())}, 100, "low")
    files.create(tmp_path)
    files.write("a", torch.zeros(2, 0, dtype=torch.bfloat16))
    files.write("b", torch.tensor(7))
    files.finish(tmp_path, 0)
    assert [each.name for each in tmp_path.iterdir()] == ["model.low.safetensors"]
    again = WeightFiles([tmp_path / "model.low.safetensors"])
    assert again.tensors["a"].values().shape == (2, 0)
    assert again.tensors["b"].values().item() == 7
    again.close()
    content = (tmp_path / "model.low.safetensors").read_bytes()
    assert {*read_header(lambda at, size: content[at : at + size], len(content))} == {"a", "b"}


def test_what_is_no_file_of_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\xff" * 40)
    (tmp_path / "empty").touch()
    for name in ("broken", "empty", "missing"):
        with pytest.raises(CheckpointError, match=name):
            WeightFiles([tmp_path / name])


def test_sizes_are_bytes_or_texts() -> None:
    assert [size_of(each) for each in (7, "5GB", "1.5 MB", "2KiB")] == [7, 5 * 10**9, 1500000, 2048]
    with pytest.raises(ConfigError, match="such as '5GB', not 'much'"):
        size_of("much")
