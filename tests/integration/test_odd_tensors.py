"""Tensors of every kind, under every kind of name, in checkpoints and in commits."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic.commits import Commits
from torsh_runtime.errors import CheckpointError
from torshrun.workers.commit_memory import CommitMemory

torch = pytest.importorskip("torch")
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


def odd() -> dict[str, Any]:
    """Values of which some would have one name, were it made of keys alone."""
    found: dict[str, Any] = {name: np.arange(5).astype(name) for name in [*DTYPES, "complex64"]}
    found |= {f"torch {name}": torch.arange(5).to(getattr(torch, name)) for name in DTYPES}
    found["bfloat16"] = torch.randn(7).bfloat16()
    found["scalar"] = np.array(3.5)
    found["torch scalar"] = torch.tensor(True)
    found["empty"] = [np.zeros((0, 3)), torch.zeros(4, 0), np.zeros(0, np.complex64)]
    found["turned"] = [np.arange(12).reshape(3, 4).T, torch.arange(12).reshape(3, 4).t()]
    found["steps"] = [np.arange(20)[::3], np.arange(6)[::-1], torch.arange(20)[::3]]
    found["spread"] = torch.ones(1, 1).expand(3, 4)
    found["names"] = {
        "../../etc/passwd": np.zeros(1),
        "a/b": np.ones(1),
        "a": {"b": np.full(1, 2.0)},
        1: np.full(1, 3.0),
        "1": np.full(1, 4.0),
        "nul\0": np.full(1, 5.0),
        "": np.full(1, 6.0),
        "__kept__": np.full(1, 7.0),
        "__metadata__": np.full(1, 8.0),
        "ü🦆": np.full(1, 9.0),
        (1, "x"): np.full(1, 10.0),
    }
    return found


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert [*found] == [*expected]
        for key, each in expected.items():
            assert_same(found[key], each)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        assert (type(found), found.dtype, found.shape) == (
            np.ndarray,
            expected.dtype,
            expected.shape,
        )
        np.testing.assert_array_equal(found, expected)
    else:
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


@contextmanager
def committing() -> Iterator[Commits]:
    with closing(CommitMemory(1)) as memory:
        yield Commits(Ranks(None), {"TORSH_COMMIT_MEMORY": memory.told()})


def test_all_come_back_from_checkpoints(tmp_path: Path) -> None:
    values = odd()
    Checkpointer(tmp_path).save(1, {"odd": values})
    loaded = Checkpointer(tmp_path).load()
    assert loaded is not None
    assert_same(loaded.values["odd"], values)


def test_all_come_back_from_commits() -> None:
    values = odd()
    with committing() as commits:
        for _ in range(3):
            commits.commit({"odd": values})
        restored = commits.restore({"odd": None})
    assert restored is not None
    assert_same(restored["odd"], values)


def test_a_dtype_that_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    state = {"wide": np.zeros(2, np.complex128)}
    with pytest.raises(CheckpointError, match="'wide' is of dtype complex128, which safetensors"):
        Checkpointer(tmp_path).save(1, state)
    with committing() as commits, pytest.raises(CheckpointError, match="'wide' is of dtype compl"):
        commits.commit(state)
    del commits
    gc.collect()  # the error's traceback holds the memory's descriptor


def test_thousands_of_tensors(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    number = 10_000 if request.config.getoption("--soak") else 1000
    model = torch.nn.ParameterList(torch.full((2,), float(n)) for n in range(number))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for each in model:
        each.grad = torch.ones(2)
    optimizer.step()
    state = {"model": model, "optimizer": optimizer}
    expected = [each.detach().clone() for each in model]
    Checkpointer(tmp_path).save(1, state)
    with committing() as commits:
        commits.commit(state)
        for restore in (Checkpointer(tmp_path).load, commits.restore):
            with torch.no_grad():
                for each in model:
                    each.zero_()
            assert restore(state) is not None
            assert all(torch.equal(a, b) for a, b in zip(model, expected, strict=True))
