"""Checkpoints to and from the formats of others: torch.distributed.checkpoint's and Hugging Face's
directories, and files of optimizers; by one process."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
import torch.distributed.checkpoint.state_dict as of_torch  # noqa: E402
from support.state_dicts import Training, difference  # noqa: E402

from torsh_runtime.checkpoint import (  # noqa: E402
    Checkpointer,
    export_state_dict,
    import_state_dict,
)
from torsh_runtime.checkpoint.__main__ import main  # noqa: E402
from torsh_runtime.errors import CheckpointError, ConfigError  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A checkpoint, and the states of its model and its optimizer as torch has them."""
    folder = tmp_path_factory.mktemp("formats")
    training = Training("one")
    training.train(0, 3)
    Checkpointer(folder).save(3, {"model": training.model, "optimizer": training.optimizer})
    optimizer = of_torch.get_optimizer_state_dict(training.model, training.optimizer)
    return folder / "step-00000003", of_torch.get_model_state_dict(training.model), optimizer


def command(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def check_loads(directory: Path, model: Any, optimizer: Any = None) -> None:
    """The newest checkpoint there has these states."""
    training = Training("one", seed=1)
    state = {"model": training.model, "optimizer": training.optimizer}
    Checkpointer(directory).load(state if optimizer else {"model": training.model})
    assert difference(training.model.state_dict(), model, exact=True) == ""
    if optimizer:
        found = of_torch.get_optimizer_state_dict(training.model, training.optimizer)
        assert difference(found, optimizer, exact=True) == ""


def test_an_optimizer_goes_to_a_file_with_its_groups(kept: Any, tmp_path: Path) -> None:
    checkpoint, _, optimizer = kept
    arguments = (checkpoint.parent, tmp_path / "optimizer.pt", "--part", "optimizer")
    assert command("export", *arguments) == (0, "")
    found = torch.load(tmp_path / "optimizer.pt", weights_only=True)
    assert difference(found, optimizer, exact=True) == ""
    with pytest.raises(ConfigError, match="whose options safetensors files cannot hold"):
        export_state_dict(checkpoint, tmp_path / "optimizer.safetensors", "optimizer")


def test_torch_loads_what_is_exported_for_it(kept: Any, tmp_path: Path) -> None:
    checkpoint, model, optimizer = kept
    for part in ("model", "optimizer"):
        export_state_dict(checkpoint, tmp_path / part, part, directory_format="dcp")
    other = Training("one", seed=1)
    states = of_torch.get_state_dict(other.model, other.optimizer)
    for part, state in zip(("model", "optimizer"), states, strict=True):
        dcp.load(state, checkpoint_id=tmp_path / part, no_dist=True)
    assert difference(states, (model, optimizer), exact=True) == ""


@pytest.mark.parametrize("nested", [True, False])
def test_what_torch_has_saved_is_imported(nested: bool, kept: Any, tmp_path: Path) -> None:
    _, model, optimizer = kept
    state = {"model": model, "optimizer": optimizer, "epoch": 3} if nested else model
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    code, said = command("import", tmp_path / "theirs", tmp_path / "ours")
    assert code == 1
    assert "can run any program: pass trust=True (--trust)" in said
    assert command("import", tmp_path / "theirs", tmp_path / "ours", "--trust") == (0, "")
    check_loads(tmp_path / "ours", model, optimizer if nested else None)


class App:
    """What the tutorial of torch.distributed.checkpoint keeps: a model and its optimizer."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.states = of_torch.get_state_dict(model, optimizer)

    def state_dict(self) -> dict[str, Any]:
        return dict(zip(("model", "optim"), self.states, strict=True))

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


def trained(groups: bool = False, named: bool = False) -> tuple[Any, Any]:
    """A model with a norm, and its optimizer after a step."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)]
    model = torch.nn.Sequential(*layers)
    parameters = model.named_parameters() if named else model.parameters()
    given = [{"params": [each]} for each in parameters] if groups else parameters
    optimizer = torch.optim.Adam(given, lr=0.25)
    model(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("kind", ["app", "numbers", "names in groups"])
def test_optimizers_come_with_their_state(kind: str, tmp_path: Path) -> None:
    model, optimizer = trained(kind == "names in groups", kind == "names in groups")
    state: Any = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    if kind == "app":
        state = {"app": App(model, optimizer), "epoch": 3}
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    part = "app.model" if kind == "app" else "model"
    arguments = (tmp_path / "theirs", tmp_path / "ours", "--trust", "--part", part)
    assert command("import", *arguments) == (0, "")
    other = torch.nn.Sequential(*(copy.deepcopy(each) for each in model))
    for each in other.parameters():
        each.data.zero_()
    groups = [{"params": [each]} for each in other.parameters()]
    found = torch.optim.Adam(groups if "groups" in kind else other.parameters())
    Checkpointer(tmp_path / "ours").load({"model": other, "optim": found})
    assert difference(other.state_dict(), model.state_dict(), exact=True) == ""
    expected = optimizer.state_dict()["state"]
    assert len(expected) == 6
    assert difference(found.state_dict()["state"], expected, exact=True) == ""
    assert found.param_groups[0]["lr"] == 0.25


def test_an_optimizer_of_unknown_parameters_is_left_out_by_name(tmp_path: Path) -> None:
    model, optimizer = trained(groups=True)
    other = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
    other.step()
    states = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    dcp.save({**states, "few": other.state_dict()}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    with pytest.warns(RuntimeWarning) as told:
        import_state_dict(tmp_path / "theirs", tmp_path / "ours", trust=True)
    said = sorted(str(each.message) for each in told if each.category is RuntimeWarning)
    assert len(said) == 2
    assert "the optimizer 'few' is left out: the state is of 2 parameters by number" in said[0]
    assert "'optim' is left out: its state is by numbers, in 6 groups; save it by names" in said[1]
    Checkpointer(tmp_path / "ours").load({"model": model})
    with pytest.raises(CheckpointError, match="nothing was kept as 'optim'"):
        Checkpointer(tmp_path / "ours").load({"model": model, "optim": optimizer})


def test_a_name_of_no_model_is_refused_with_those_there_are(tmp_path: Path) -> None:
    state = {"app": App(*trained()), "ema": trained()[0].state_dict()}
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    for part in ("model", "app", "app.optim"):
        said = command("import", tmp_path / "theirs", tmp_path / "ours", "--trust", "--part", part)
        assert said[0] == 1
        assert f"has no model named {part!r}; those that part= (--part) may" in said[1]
        assert said[1].endswith(" are 'app.model', 'ema'\n")


@pytest.mark.parametrize("place", [0, 40, 70, 80, 100, 150, 200, -300, -120, -60, -10])
@pytest.mark.parametrize("is_zip", [True, False])
def test_damaged_files_of_torch_are_refused_in_a_line(
    is_zip: bool, place: int, tmp_path: Path
) -> None:
    file = tmp_path / "model.pt"
    tensors = {"first": torch.zeros(3), "second": torch.zeros(2)}
    torch.save(tensors, file, _use_new_zipfile_serialization=is_zip)
    content = bytearray(file.read_bytes())
    content[place] ^= 0xFF
    content[place + 1] ^= 0x55
    file.write_bytes(content)
    code, said = command("import", file, tmp_path / "ours")
    assert said.count("\n") == code
    assert code == 0 or str(file) in said


def test_tensors_that_are_not_dense_are_refused_by_name(tmp_path: Path) -> None:
    for kind, tensor in {
        "is sparse": torch.eye(3).to_sparse(),
        "has no values": torch.empty(3, device="meta"),
    }.items():
        torch.save({"first": torch.zeros(2), "second": tensor}, tmp_path / "model.pt")
        code, said = command("import", tmp_path / "model.pt", tmp_path / "ours")
        assert code == 1
        assert f"model.pt: 'second' {kind}" in said
        assert said.count("\n") == 1


class Planted:
    """An object whose pickle makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mknod, (str(self.file),)


def test_pickles_are_not_loaded_without_trust(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / ".metadata").write_bytes(pickle.dumps(Planted(tmp_path / "planted")))
    with pytest.raises(CheckpointError, match="pass trust=True"):
        import_state_dict(theirs, tmp_path / "ours")
    assert not (tmp_path / "planted").exists()
    (theirs / ".metadata").write_bytes(b"no pickle")
    code, said = command("import", theirs, tmp_path / "ours", "--trust")
    assert code == 1
    assert said.count("\n") == 1
    assert "theirs cannot be read: " in said


def test_models_in_several_files_come_and_go(
    kept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, model, _ = kept
    monkeypatch.setattr("torsh_runtime.checkpoint.exporting._LARGEST_FILE", 3000)
    hub = tmp_path / "hub"
    assert command("export", checkpoint.parent, hub, "--format", "safetensors") == (0, "")
    assert len([*hub.glob("model-*.safetensors")]) > 1
    told = json.loads((hub / "model.safetensors.index.json").read_text())
    assert told["weight_map"].keys() == model.keys()
    for number, source in enumerate((hub, hub / "model.safetensors.index.json")):
        import_state_dict(source, tmp_path / f"{number}")
        check_loads(tmp_path / f"{number}", model)
    code, said = command("export", checkpoint.parent, hub, "--format", "safetensors")
    assert code == 1
    assert "is there already and not empty" in said
    export_state_dict(checkpoint, tmp_path / "m.safetensors")
    (tmp_path / "one").mkdir()
    (tmp_path / "m.safetensors").rename(tmp_path / "one" / "model.safetensors")
    import_state_dict(tmp_path / "one", tmp_path / "third")
    check_loads(tmp_path / "third", model)


def _index(text: Any) -> Any:
    def write(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(text)

    return write


def _map(file: Any) -> Any:
    return _index(json.dumps({"weight_map": {"a": file}}))


def _long(folder: Path) -> None:
    with (folder / "model.safetensors.index.json").open("wb") as file:
        file.truncate(64 << 30)


HOSTILE: dict[str, tuple[Any, str]] = {
    "no files": (lambda folder: None, "cannot be read: No such file"),
    "no json": (_index("{"), "is no index of safetensors files"),
    "no map": (_index("[]"), "is no index of safetensors files"),
    "deep": (_index("[" * 100_000), "is no index of safetensors files"),
    "elsewhere": (_map("../../etc/passwd"), "is no name of a file beside it"),
    "no text": (_map(3), "3 is no name of a file beside it"),
    "escapes": (_map("\x1b[31m"), r"'\\x1b[31m' is no name of a file beside it"),
    "gone": (_map("gone.safetensors"), "gone.safetensors cannot be read: No such file"),
    "a pipe": (
        lambda folder: os.mkfifo(folder / "model.safetensors.index.json"),
        "it is no regular file",
    ),
    "64 GiB": (_long, "68719476736 bytes are more than any index has"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_directories_that_lie_are_refused_in_a_line(name: str, tmp_path: Path) -> None:
    plant, expected = HOSTILE[name]
    (tmp_path / "hub").mkdir()
    plant(tmp_path / "hub")
    code, said = command("import", tmp_path / "hub", tmp_path / "ours")
    assert code == 1
    assert said.count("\n") == 1
    assert said.strip().isprintable()
    assert expected in said


def test_an_index_and_its_files_must_agree(kept: Any, tmp_path: Path) -> None:
    export_state_dict(kept[0], tmp_path / "a.safetensors")
    _map("a.safetensors")(tmp_path)
    with pytest.raises(CheckpointError, match=r"says that 'a.safetensors' has 'a', and it has not"):
        import_state_dict(tmp_path, tmp_path / "ours")
