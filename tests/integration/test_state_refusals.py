"""What cannot be kept is refused by name, before there is anything to keep."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.torch_ranks import passed, run_ranks  # noqa: E402
from torch import nn  # noqa: E402

import torsh_runtime as tr  # noqa: E402
from torsh_runtime.checkpoint import Checkpointer  # noqa: E402

pytestmark = pytest.mark.torch


def said(call: Any, *arguments: Any) -> str:
    """By the CheckpointError that it raises."""
    try:
        call(*arguments)
    except tr.CheckpointError as error:
        return str(error)
    return ""


def refusals_of_a_sharded_model(directory: Path) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    checkpointer, state = Checkpointer(directory), tr.elastic.State(model=model)
    import torch.distributed._functional_collectives as functional

    late = functional.all_reduce(torch.ones(3), "sum", torch.distributed.group.WORLD)
    own = directory / f"late-{torch.distributed.get_rank()}"
    Checkpointer(own).save(1, {"late": late})  # which is no such class
    loaded = Checkpointer(own).load()
    assert loaded is not None
    assert torch.equal(loaded.values["late"], torch.full((3,), 2.0))
    return [
        said(checkpointer.load, {"model": model}),
        said(state.restore),
        said(checkpointer.save, 1, {"model": model}),
        said(checkpointer.save, 1, {"weight": model[0].weight}),
    ]


def test_models_that_torch_has_sharded_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = passed(run_ranks(2, lambda _: refusals_of_a_sharded_model(tmp_path)))
    for own in told:
        assert len(own) == 4
        begins = ("could not save", "cannot keep the state", *["rank 0 cannot save"] * 2)
        names = ["model/0.weight"] * 3 + ["weight"]
        for text, begin, name in zip(own, begins, names, strict=True):
            assert text.startswith(f"{begin}: '{name}'")
            assert f"'{name}' is a DTensor of torch, as torch's fully_shard()" in text
            assert "keep it with torch.distributed.checkpoint (dcp.save()" in text
    assert not tmp_path.joinpath("step-00000001").exists()


class Halved(torch.Tensor):
    """Holds another tensor, of which it is the half."""

    @staticmethod
    def __new__(cls, whole: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=whole.dtype)

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def __tensor_flatten__(self) -> Any:
        return ["whole"], {"dtype": self.whole.dtype}

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> Any:
        assert context == {"dtype": parts["whole"].dtype}
        return cls(parts["whole"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        plain = [each.whole / 2 if isinstance(each, cls) else each for each in args]
        return function(*plain, **(kwargs or {}))


class Labelled(torch.Tensor):
    """Has memory of its own, and no way to be made again."""


class Copied(Halved):
    def __init__(self, whole: Any) -> None:
        self.whole = whole.clone()


def test_tensors_of_a_class_come_back_as_such_or_are_refused(tmp_path: Path) -> None:
    whole = torch.arange(6.0).view(2, 3)
    values = {"values": [Halved(whole)]}
    with pytest.raises(tr.CheckpointError, match=r"Halved, which torch.load\(\) does not accept"):
        Checkpointer(tmp_path).save(1, values)
    with torch.serialization.safe_globals([Halved, Copied]):
        Checkpointer(tmp_path).save(1, values)
        loaded = Checkpointer(tmp_path).load()
        assert loaded is not None
        (found,) = loaded.values["values"]
        assert type(found) is Halved
        assert torch.equal(found.whole, whole)
        Checkpointer(tmp_path / "copied").save(1, {"values": Copied(whole)})
        with pytest.raises(tr.CheckpointError, match="copies what its tensors are made of"):
            Checkpointer(tmp_path / "copied").load()
    with pytest.raises(tr.CheckpointError, match=r"Halved', which torch\.load\(\) does not acc"):
        Checkpointer(tmp_path).load()
    for value, what in (
        (whole.as_subclass(Labelled), r"Labelled, of which only the elements.*as_subclass\("),
        (np.ma.masked_array([1, 2], [0, 1]), r"MaskedArray, of which only.*numpy\.asarray"),
    ):
        with pytest.raises(tr.CheckpointError, match=what):
            Checkpointer(tmp_path).save(2, {"values": value})


def test_a_model_made_of_such_tensors_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("scale", Halved(torch.ones(2, 3)))
    with pytest.raises(tr.CheckpointError, match=r"'model/scale' is a .*Halved, of which"):
        Checkpointer(tmp_path).load({"model": model})
    with pytest.raises(tr.CheckpointError, match=r"torch\.save\(\)"):
        Checkpointer(tmp_path).save(1, {"model": model})
