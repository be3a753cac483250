"""What sort of failure words show."""

from __future__ import annotations

import gzip
import importlib
import io
import os
import pickle
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.recognition import (
    SEARCHED_CHARS,
    diagnose_child_words,
    diagnose_frames,
    diagnose_words,
)


@pytest.mark.parametrize(
    "piece", [".so", "unable to a1", "limit ", "norm ", "file ", "1", " .so:", "was "]
)
def test_long_words_do_not_take_long(piece: str) -> None:
    """A pattern that takes more than square time would need minutes for these."""
    said = piece * SEARCHED_CHARS
    assert [
        diagnose_words([head + said], "python") for head in ("", "unable to a", "ImportError: ")
    ]


@pytest.mark.parametrize("before", ["", "OSError: ", "ImportError: dlopen:", "error: '"])
def test_a_library_that_is_missing_is_named(before: str) -> None:
    found = diagnose_words(
        [f"{before}libx.so.1: cannot open shared object file: No such file"], "python"
    )
    assert found
    assert found.kind is Kind.IMPORT
    assert "libx.so.1'" in found.why


def test_an_exit_code_without_end_is_none() -> None:
    assert diagnose_child_words("exit code: -" + "9" * 6000) is None
    assert diagnose_child_words("exit code: -11")


def test_a_script_that_asks_is_told_that_nobody_answers() -> None:
    found = diagnose_words(["EOFError: EOF when reading a line"], "python")
    assert found
    assert "stdin" in found.why


SAVED = "nothing was saved, for rank 0: "
LOADED = "/x has no checkpoint that can be loaded. rank 0: /x/step-00000001: "


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{SAVED}[Errno 13] Permission denied: '/x/.lock'", "PERMISSION"),
        (f"{LOADED}manifest.json cannot be read: Permission denied.", "PERMISSION"),
        (f"{SAVED}[Errno 28] No space left on device", "DISK_FULL"),
        (f"{SAVED}another job is saving to /x: give each job a directory of its own", "USAGE"),
        ("no tensor 'model/0.bias'", "USAGE"),
        ("/x has no checkpoint of step 3 that can be loaded.", "USAGE"),
        (f"{LOADED}rank-00000.safetensors has 3 bytes, and had 5 when written.", "DAMAGED_FILE"),
        ("/x: manifest.json makes no sense: KeyError('step')", "DAMAGED_FILE"),
    ],
)
def test_not_every_error_of_checkpoints_is_of_damaged_ones(text: str, kind: str) -> None:
    found = diagnose_words([f"torsh_runtime.errors.CheckpointError: {text}"], "python")
    assert found
    assert found.kind is Kind[kind]


@pytest.mark.parametrize(
    ("said", "is_nan"),
    [
        ("loss -nan", True),
        ("loss: nan", True),
        ("usage: train.py [-h] [--lr LR] [--check-nan]", False),
        ("train.py: error: argument --on-NaN: expected one argument", False),
    ],
)
def test_an_option_is_not_a_number_that_is_none(said: str, is_nan: bool) -> None:
    found = diagnose_words([said], "python")
    assert (found is not None and found.kind is Kind.NAN) is is_nan


def reading(fails: Callable[[], object]) -> Diagnosis | None:
    """What is shown by the exception that this raises."""
    try:
        fails()
    except Exception as error:
        lines = "".join(traceback.format_exception(error)).splitlines()
        chain = [each for each in (error.__cause__ or error.__context__, error) if each]
        errors = [f"{type(each).__name__}: {each}" for each in chain]
        return diagnose_words(errors[::-1], "python") or diagnose_frames(errors, lines)
    return None


def is_damage(fails: Callable[[], object]) -> bool:
    found = reading(fails)
    return found is not None and found.kind is Kind.DAMAGED_FILE


def cut_short(path: Path) -> str:
    np.save(path, np.arange(100))
    path.write_bytes(path.read_bytes()[:-80])
    return str(path)


def close_after(fails: Callable[[], object]) -> None:
    try:
        fails()
    finally:
        None.close()  # type: ignore[attr-defined]


def test_sizes_that_do_not_fit_are_damage_only_of_what_a_file_holds(tmp_path: Path) -> None:
    path = cut_short(tmp_path / "a.npy")
    assert is_damage(lambda: np.load(path))
    assert is_damage(lambda: close_after(lambda: np.load(path)))
    assert is_damage(lambda: np.fromfile(path, np.int8).reshape(32, -1, 7))
    assert not is_damage(lambda: np.ones(222).reshape(32, -1))
    assert not is_damage(lambda: close_after(lambda: np.ones(222).reshape(32, -1)))
    assert not is_damage(lambda: np.frombuffer(b"123", np.float32, 5))
    assert is_damage(lambda: np.frombuffer(open(path, "rb").read(), np.float32, 500))  # noqa: SIM115, PTH123


def test_not_every_error_of_what_reads_files_is_of_a_damaged_one() -> None:
    arrays, objects = io.BytesIO(), io.BytesIO()
    np.savez(arrays, x=np.ones(3))
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    arrays.seek(0)
    objects.seek(0)
    for fails in (
        lambda: np.load(arrays)["y"],
        lambda: np.load(objects),
        lambda: np.loadtxt(["1 2", "3"]),
        lambda: zipfile.ZipFile(arrays).read("y"),
        lambda: zipfile.ZipFile(arrays, "q"),  # type: ignore[call-overload]
        lambda: pickle._dumps(lambda: 1),  # type: ignore[attr-defined]
    ):
        assert reading(fails) is None
    assert is_damage(lambda: gzip.decompress(gzip.compress(b"a" * 1000)[:-10]))


def test_what_torch_says_of_whole_files_is_of_no_damaged_one(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = str(tmp_path / "a.pt")
    torch.save(torch.ones(3), path)
    nowhere = reading(lambda: torch.save({}, tmp_path / "nowhere" / "a.pt"))
    assert nowhere
    assert nowhere.kind is Kind.NO_FILE
    assert reading(lambda: torch.save(lambda: 1, path + "2")) is None
    if not torch.cuda.is_available():
        no_gpu = reading(lambda: torch.load(path, map_location="cuda"))
        assert no_gpu
        assert no_gpu.kind is Kind.USAGE


def test_a_checksum_of_what_ranks_have_is_of_no_file() -> None:
    found = diagnose_words(
        ["RuntimeError: the checksum of the weights differs on rank 2"], "python"
    )
    assert found is None
    assert diagnose_words(["OSError: checksum mismatch in data-3.bin"], "python")


def test_a_name_that_a_newer_library_lacks_is_of_its_version() -> None:
    for name in ("float_", "float"):
        found = reading(lambda name=name: getattr(np, name))  # type: ignore[misc]
        assert found
        assert found.kind is Kind.VERSION
        assert f"'np.{name}' is gone (see its notes on NumPy " in found.why


def test_a_name_that_a_module_lacks_may_be_of_its_version_a_shadow_or_a_slip() -> None:
    found = reading(lambda: np.lib.nothing)  # type: ignore[attr-defined]
    assert found
    assert found.kind is Kind.EXCEPTION
    assert "The module 'numpy.lib' has no nothing: it is of another version" in found.why


@pytest.mark.parametrize("name", ["torch._six", "numpy.core.gone", "email.parser.gone"])
def test_a_missing_part_of_a_library_that_is_here_is_not_told_to_be_installed(name: str) -> None:
    found = reading(lambda: importlib.import_module(name))
    assert found
    assert found.kind is Kind.IMPORT
    library = name.partition(".")[0]
    assert f"python finds {library}, and no '{name}' in it: {library} is of another v" in found.why
    assert "Install it" not in found.advice


def test_an_argument_that_a_function_lacks_may_be_of_its_version_or_a_slip() -> None:
    found = reading(lambda: traceback.TracebackException.from_exception(ValueError(), limits=3))
    assert found
    assert found.kind is Kind.EXCEPTION
    assert "takes no argument limits: it is of another version" in found.why


def test_a_library_whose_compiled_part_is_missing_fits_another_torch() -> None:
    torch = pytest.importorskip("torch")
    found = reading(lambda: torch.library.register_fake("no_such::cut", lambda x: x))
    assert found
    assert found.kind is Kind.VERSION
    assert "Python's part of 'no_such' is here, and its compiled part is not" in found.why


@pytest.mark.parametrize("name", ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_a_script_for_another_launcher_is_told_of_torshruns_variables(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    found = reading(lambda: os.environ[name])
    assert found
    assert found.kind is Kind.USAGE
    assert f"It looks for '{name}', which another launcher" in found.why
    assert "LOCAL_RANK" in found.advice
    assert not diagnose_words(["KeyError: 'SLURM'"], "python")
    assert not diagnose_words(["KeyError: 'labels'"], "python")


@pytest.mark.parametrize(
    "said",
    [
        "OSError: We couldn't connect to 'https://hub.example' to load the files, and couldn't",
        "hub.errors.OfflineModeIsEnabled: Cannot reach https://hub.example/a: offline mode",
        "hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file",
        "FileNotFoundError: https://hub.example/a/input.txt",
        "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>",
        "ConnectionError: HTTPSConnectionPool(host='a.example', port=443): Max retries exceeded",
    ],
)
def test_a_download_that_finds_no_way_out_is_told_to_be_made_elsewhere(said: str) -> None:
    found = diagnose_words([said], "python")
    assert found
    assert found.kind is Kind.NETWORK
    assert "not on this node yet" in found.why
    local = diagnose_words(["HTTPConnectionPool(host='127.0.0.1'): Connection refused"], "python")
    assert local
    assert "not on this node yet" not in local.why


def test_a_breakpoint_that_nobody_answers_is_told_from_other_exceptions() -> None:
    found = diagnose_words(["bdb.BdbQuit"], "python")
    assert found
    assert found.kind is Kind.EXCEPTION
    assert "a breakpoint is left in" in found.why
    assert "stdin is closed" in found.why


def test_a_penalty_outside_of_a_sharded_model_is_told_where_it_belongs() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.ones(64, 64, requires_grad=True)
    used = weight.sum()  # within the model
    weight.data = torch.ones(31, 64)  # as a rank has it outside of the model
    with pytest.raises(RuntimeError, match="invalid gradient") as raised:
        (used + weight.pow(2).sum()).backward()
    found = diagnose_words([f"RuntimeError: {raised.value}"], "python")
    assert found
    assert "PowBackward0" in found.why
    assert "register_fsdp_forward_method" in found.advice
