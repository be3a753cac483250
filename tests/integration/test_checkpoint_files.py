"""Checkpoints in files: which are taken, kept, passed over and refused, by one process."""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.checkpoint_files import only_file, saved

from torsh_runtime import nn, optim
from torsh_runtime.checkpoint import (
    Checkpointer,
    CheckpointReader,
    DamagedCheckpoint,
    PerRank,
    export_state_dict,
    import_state_dict,
)
from torsh_runtime.checkpoint.__main__ import main
from torsh_runtime.errors import CheckpointError, ConfigError, TorshError
from torsh_runtime.layout import Piece, ShardedTensor


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


class Stateful:
    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_without_checkpoints_there_is_nothing_to_load(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "none")
    assert checkpointer.load({}) is None
    assert checkpointer.steps() == []
    with pytest.raises(CheckpointError, match="no checkpoint of step 3"):
        checkpointer.load({}, step=3)


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    values = {
        "numbers": [1, 2.5, float("inf"), True, None, np.float32(0.5), 1 << 70],
        "texts": ("a", "ü\0\n", b"\0\xff"),
        "nested": {"a": {1: "one", (2, "b"): [()]}, "": {}},
        "marked": {"__kept__": "tensor"},
        "arrays": {"a": [np.arange(3), np.zeros((0, 2), np.int8)], "b": np.float64([[1], [2]])},
        "epoch": 7,
    }
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, values)
    loaded = checkpointer.load()
    assert loaded is not None
    arrays = loaded.values.pop("arrays")
    np.testing.assert_equal(arrays, values.pop("arrays"))
    assert arrays["b"].shape == (2, 1)
    assert loaded.values == values


def test_what_has_a_state_gets_it_back(tmp_path: Path) -> None:
    counted = Stateful({"milestones": Counter({30: 1}), "lrs": [0.1]})
    alone = Stateful({"residual": np.arange(4.0)})
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, {"schedule": counted, "residuals": PerRank(alone)})
    fresh, residuals, new = Stateful(), Stateful(), Stateful("unchanged")
    state = {"schedule": fresh, "residuals": PerRank(residuals), "new": PerRank(new)}
    assert checkpointer.load(state).values == {}  # type: ignore[union-attr]
    assert fresh.state == {"milestones": {30: 1}, "lrs": [0.1]}
    np.testing.assert_array_equal(residuals.state["residual"], np.arange(4.0))
    assert new.state == "unchanged"


def test_an_asynchronous_save_keeps_the_values_of_the_call(tmp_path: Path) -> None:
    array = np.zeros(1 << 20)
    with Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2, 3):
            array[:] = step
            checkpointer.save(step, {"array": array}, async_op=True)
            array[:] = -1
    for step in (1, 2, 3):
        loaded = checkpointer.load(step=step)
        assert loaded is not None
        assert (loaded.values["array"] == step).all()


def test_a_save_that_fails_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    checkpointer = Checkpointer(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"nothing was saved, for rank 0: .*file"):
        checkpointer.save(1, {"a": 1})
    checkpointer.save(1, {"a": 1}, async_op=True)
    with pytest.raises(CheckpointError, match="nothing was saved"):
        checkpointer.wait()
    checkpointer.wait()
    checkpointer = saved(tmp_path / "good", 1)
    for thing in (object(), {"a": {1, 2}}, np.array([object()]), np.zeros(1, "complex128")):
        with pytest.raises(CheckpointError, match="rank 0 cannot save"):
            checkpointer.save(2, {"thing": thing})
    assert [each.name for each in (tmp_path / "good").iterdir()] == ["step-00000001"]
    with pytest.raises(ConfigError, match="step"):
        checkpointer.save(-1, {})
    with pytest.raises(ConfigError, match="keep_last"):
        Checkpointer(tmp_path, keep_last=0)


def damages() -> Iterator[Any]:
    def at(place: float) -> Any:
        return lambda path: flip(only_file(path), int(place * only_file(path).stat().st_size))

    yield pytest.param(at(0.0), id="first byte")
    yield pytest.param(at(0.5), id="byte in the middle")
    yield pytest.param(at(0.999999), id="last byte")
    yield pytest.param(lambda path: os.truncate(only_file(path), 1000), id="cut short")
    yield pytest.param(lambda path: only_file(path).unlink(), id="file gone")
    yield pytest.param(lambda path: (path / "manifest.json").unlink(), id="manifest gone")
    yield pytest.param(lambda path: flip(path / "manifest.json", 50), id="manifest changed")
    yield pytest.param(lambda path: os.truncate(path / "manifest.json", 90), id="manifest cut")
    yield pytest.param(_linked, id="a link")
    yield pytest.param(_pipe, id="a pipe")


def _linked(path: Path) -> None:
    file = only_file(path)
    file.rename(path / "elsewhere")
    file.symlink_to("elsewhere")


def _pipe(path: Path) -> None:
    file = path / "manifest.json"
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("damage", list(damages()))
def test_a_damaged_checkpoint_is_passed_over(damage: Any, tmp_path: Path) -> None:
    checkpointer = saved(tmp_path, 1, 2, size=400_000)
    damage(tmp_path / "step-00000002")
    with pytest.warns(RuntimeWarning, match=r"passed over a checkpoint: rank 0: .*step-00000002"):
        loaded = checkpointer.load()
    assert loaded is not None
    assert loaded.step == 1
    assert (loaded.values["array"] == 1).all()
    assert len(loaded.passed_over) == 1
    result = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert result.exit_code == 1
    assert "step-00000002  damaged: " in result.output
    assert "step-00000001  whole" in result.output
    damage(tmp_path / "step-00000001")
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(CheckpointError, match="no checkpoint that can be loaded"),
    ):
        checkpointer.load()


def test_only_the_blocks_that_are_wanted_are_read(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(1, {"array": np.arange(1 << 20)})
    path = tmp_path / "step-00000001"
    flip(only_file(path), only_file(path).stat().st_size - 1)
    part = Piece((1 << 20,), (0,), (1 << 20,), 1000, 2000)
    values = np.empty(1000, np.int64)
    with CheckpointReader(path) as reader:
        reader.read("array", ShardedTensor(values, part))
        np.testing.assert_array_equal(values, np.arange(1000, 2000))
        with pytest.raises(DamagedCheckpoint, match="not those that were written"):
            reader.read_bytes("array")


def test_a_model_that_does_not_fit_is_an_error_and_nothing_is_passed_over(tmp_path: Path) -> None:
    def training(width: int, bias: bool = True) -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(2, width, bias=bias))
        return {"model": model, "optimizer": optim.SGD(model.parameters(), 0.1, momentum=0.9)}

    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, training(3, bias=False))
    with pytest.raises(CheckpointError, match=r"'model/0.weight' is float32 of shape \(3, 2\)"):
        checkpointer.load(training(4, bias=False))
    with pytest.raises(CheckpointError, match=r"no tensor 'model/0.bias'"):
        checkpointer.load({"model": training(3)["model"]})
    with pytest.raises(CheckpointError, match="nothing was kept as 'other'"):
        checkpointer.load({"other": 3})
    with pytest.raises(ConfigError, match="a parameter of shape"):
        checkpointer.load({"optimizer": training(3, bias=False)["optimizer"]})


def test_a_model_is_loaded_from_what_another_one_was_saved_as(tmp_path: Path) -> None:
    model, averaged = nn.Linear(2, 3), nn.Linear(2, 3)
    optimizer = optim.SGD(model.parameters(), 0.1)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, {"model": model, "ema": averaged, "optimizer": optimizer})
    for names in ({"model/": "ema/"}, {"model": "ema"}):
        other = nn.Linear(2, 3)
        loaded = checkpointer.load({"model": other}, strict=False, names=names)
        assert loaded is not None
        assert (loaded.missing_keys, loaded.unexpected_keys) == ((), ())
        np.testing.assert_array_equal(
            other.weight.detach().numpy(), averaged.weight.detach().numpy()
        )
    small = nn.Linear(2, 3, bias=False)
    loaded = checkpointer.load({"model": small}, strict=False, names={"model/": "ema/"})
    assert loaded is not None
    assert loaded.unexpected_keys == ("ema/bias",)


@pytest.mark.parametrize("key", ["weight", "mod", "optimizer/", ""])
def test_names_that_begin_with_no_model_are_refused(key: str, tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    state = {"model": model, "optimizer": optim.SGD(model.parameters(), 0.1)}
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, state)
    with pytest.raises(ConfigError, match=f"names= maps '{key}', and .* begin .*: 'model/'"):
        checkpointer.load(state, strict=False, names={key: "ema/"})


def rewritten(path: Path, change: Any) -> None:
    """The manifest after a change, with a checksum that fits."""
    text = (path / "manifest.json").read_bytes().partition(b"\n")[2]
    told = json.loads(text)
    change(told)
    content = json.dumps(told).encode()
    (path / "manifest.json").write_bytes(b"%08x\n" % zlib.crc32(content) + content)


def half_of(piece: Any) -> Any:
    return {**piece, "piece": {**piece["piece"], "end": piece["piece"]["end"] // 2}}


def lies() -> Iterator[Any]:
    name = "rank-00000.safetensors"

    def tensor(told: Any) -> Any:
        return told["tensors"]["array"]

    yield lambda told: told.update(version=99)
    yield lambda told: told.update(time=1e300)
    yield lambda told: told.update(time=float("nan"))
    yield lambda told: told.update(time="now")
    yield lambda told: told.update(files={"../" + name: told["files"][name]})
    yield lambda told: told["files"].update({"/etc/passwd": told["files"][name]})
    yield lambda told: told["files"][name].update(block=0)
    yield lambda told: told["files"][name].update(num_bytes=1 << 62)
    yield lambda told: told["files"][name].update(checksums=[])
    yield lambda told: told["files"][name].update(checksums=[True])
    yield lambda told: tensor(told).update(shape=[1 << 62])
    yield lambda told: tensor(told).update(shape=[-1])
    for spans in ([[]], [[[0, 1], [3, 1 << 40]]], [[[1, 2], [0, 1]]], [[0, 1]], 7):
        yield lambda told, spans=spans: tensor(told)["pieces"][0]["piece"].update(spans=spans)
    for shape in ([0, 1 << 63], [0, 1 << 40, 1 << 40], [0] + [1] * 64):
        yield lambda told, shape=shape: tensor(told).update(shape=shape, pieces=[])
    yield lambda told: told["files"].update({"rank\x1b[31m\u202e": told["files"][name]})
    yield lambda told: tensor(told).update(dtype="object")
    yield lambda told: tensor(told).update(dtype=["float64"])
    yield lambda told: tensor(told)["pieces"][0].update(start=1 << 40)
    yield lambda told: tensor(told)["pieces"][0].update(start=-1)
    yield lambda told: tensor(told)["pieces"][0].update(file="nothing")
    yield lambda told: tensor(told)["pieces"][0]["piece"].update(end=1 << 40)
    yield lambda told: tensor(told)["pieces"][0]["piece"].update(offsets=[5])
    yield lambda told: tensor(told)["pieces"][0]["piece"].update(start=1)
    yield lambda told: tensor(told)["pieces"].clear()
    yield lambda told: tensor(told).update(pieces=[half_of(tensor(told)["pieces"][0])] * 2)
    yield lambda told: tensor(told).update(shape=[1 << 60], pieces=[])
    yield lambda told: told.update(tensors=[])
    yield lambda told: told.update(values=[])
    yield lambda told: told.update(values={"array": {"__kept__": "tensor", "name": "other"}})
    yield lambda told: told.update(values={"array": {"__kept__": "tensor", "name": []}})
    yield lambda told: told.update(values={"array": {"__kept__": "tuple"}})
    yield lambda told: told.update(values={"array": {"__kept__": "dict", "items": [[[], 1]]}})
    yield lambda told: told.update(values={"array": {"__kept__": "dict", "items": 5}})
    yield lambda told: told.update(values={"array": {"__kept__": "bytes", "base64": "ü"}})
    yield lambda told: told.update(values={"array": {"__kept__": "python/object"}})
    yield lambda told: told.update(aliases={"array": "array"}, tensors={})


@pytest.mark.parametrize("lie", list(lies()))
@pytest.mark.filterwarnings("ignore:passed over")
def test_a_manifest_that_lies_is_refused(lie: Any, tmp_path: Path) -> None:
    checkpointer = saved(tmp_path, 1)
    rewritten(tmp_path / "step-00000001", lie)
    with pytest.raises(TorshError):
        checkpointer.load()


@pytest.mark.torch
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_model_goes_to_a_plain_file_and_back(suffix: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from support.fsdp_training import Net

    model, other = Net().to(torch.bfloat16), Net().to(torch.bfloat16)
    Checkpointer(tmp_path / "a").save(5, {"model": model})
    file = tmp_path / f"model.{suffix}"
    runner = CliRunner()
    assert runner.invoke(main, ["export", str(tmp_path / "a"), str(file)]).exit_code == 0
    if suffix == "pt":
        other.load_state_dict(torch.load(file, weights_only=True))
    else:
        from safetensors.torch import load_file

        other.load_state_dict(load_file(file))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    again = Net().to(torch.bfloat16)
    result = runner.invoke(main, ["import", str(file), str(tmp_path / "b"), "--step", "5"])
    assert result.exit_code == 0, result.output
    loaded = Checkpointer(tmp_path / "b").load({"model": again})
    assert loaded is not None
    assert loaded.step == 5
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_plain_files_that_are_none_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1)
    with pytest.raises(ConfigError, match=r"must end in \.safetensors"):
        export_state_dict(tmp_path / "a" / "step-00000001", tmp_path / "file.txt")
    with pytest.raises(CheckpointError, match="no tensors of a part named 'model'"):
        export_state_dict(tmp_path / "a" / "step-00000001", tmp_path / "a.safetensors")
    for suffix in ("safetensors", "pt"):
        file = tmp_path / f"noise.{suffix}"
        file.write_bytes(b"noise" * 100)
        if suffix == "pt":
            pytest.importorskip("torch")
        with pytest.raises(CheckpointError):
            import_state_dict(file, tmp_path / "b")
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "a",
        "noise.pt",
        "noise.safetensors",
    ]


def tensor_file(file: Path, shape: list[int]) -> Path:
    """One of safetensors' with an empty tensor of this shape."""
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    return file


@pytest.mark.parametrize("shape", [[0, 1 << 63], [0, 1 << 62], [0, 1 << 40, 1 << 40], [0] * 70])
def test_shapes_that_no_array_has_are_refused(shape: list[int], tmp_path: Path) -> None:
    file = tensor_file(tmp_path / "model.safetensors", shape)
    with pytest.raises(CheckpointError, match="no array can be of shape"):
        import_state_dict(file, tmp_path / "a")
    result = CliRunner().invoke(main, ["import", str(file), str(tmp_path / "a")])
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_pipe_is_no_model_and_a_link_may_lead_to_one(suffix: str, tmp_path: Path) -> None:
    if suffix == "pt":
        pytest.importorskip("torch")
    pipe = tmp_path / f"pipe.{suffix}"
    os.mkfifo(pipe)
    with pytest.raises(CheckpointError, match=r"cannot be read: .*it is no regular file"):
        import_state_dict(pipe, tmp_path / "a")
    file = tensor_file(tmp_path / "elsewhere", [0, 3])
    if suffix == "safetensors":
        (tmp_path / "model.safetensors").symlink_to(file)
        import_state_dict(tmp_path / "model.safetensors", tmp_path / "a")
        assert Checkpointer(tmp_path / "a").steps() == [0]


def test_a_manifest_of_many_gibibytes_is_not_read(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    manifest = tmp_path / "step-00000001" / "manifest.json"
    os.truncate(manifest, 64 << 30)
    found = CliRunner().invoke(main, ["ls", str(tmp_path)]).output
    assert "damaged: " in found
    assert "68719476736 bytes are more than any has" in found


def test_the_command_lists_what_there_is(tmp_path: Path) -> None:
    saved(tmp_path, 1, 20)
    (tmp_path / "step-00000001" / "manifest.json").unlink()
    runner = CliRunner()
    lines = runner.invoke(main, ["ls", str(tmp_path)]).output.splitlines()
    assert lines[0].startswith("step-00000020  ")
    assert lines[0].endswith("  1 rank(s)  1 tensors  0.8 MB")
    assert lines[1].startswith("step-00000001  damaged: ")
    shown = runner.invoke(main, ["ls", "--tensors", str(tmp_path)]).output
    assert "  'array'  float64  (100000,)  1 piece(s)" in shown
    missing = runner.invoke(main, ["ls", str(tmp_path), "--step", "3"])
    assert missing.exit_code == 2
    assert "no checkpoint of step 3" in missing.output
