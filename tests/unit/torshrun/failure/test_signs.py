"""What sort of failure words show."""

from __future__ import annotations

import pytest

from torshrun.failure.kinds import Kind
from torshrun.failure.signs import SEARCHED_CHARS, by_child, by_words


@pytest.mark.parametrize("piece", [".so", "unable to a1", "limit ", "norm ", "file ", "1", " .so:"])
def test_long_words_do_not_take_long(piece: str) -> None:
    """A pattern that takes more than square time would need minutes for these."""
    said = piece * SEARCHED_CHARS
    assert [by_words([head + said], "python") for head in ("", "unable to a", "ImportError: ")]


@pytest.mark.parametrize("before", ["", "OSError: ", "ImportError: dlopen:", "error: '"])
def test_a_library_that_is_missing_is_named(before: str) -> None:
    found = by_words([f"{before}libx.so.1: cannot open shared object file: No such file"], "python")
    assert found
    assert found.kind is Kind.IMPORT
    assert "libx.so.1'" in found.why


def test_an_exit_code_without_end_is_none() -> None:
    assert by_child("exit code: -" + "9" * 6000) is None
    assert by_child("exit code: -11")


def test_a_script_that_asks_is_told_that_nobody_answers() -> None:
    found = by_words(["EOFError: EOF when reading a line"], "python")
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
    found = by_words([f"torsh_runtime.errors.CheckpointError: {text}"], "python")
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
    found = by_words([said], "python")
    assert (found is not None and found.kind is Kind.NAN) is is_nan
