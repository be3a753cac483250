"""record: what it writes, and that it changes nothing else."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torsh_runtime as tr


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


def fail(error: BaseException) -> None:
    raise error


def test_an_exception_is_written_and_goes_on_unchanged(error_file: Path) -> None:
    error = KeyError("gone")
    with pytest.raises(KeyError) as raised:
        tr.record(fail)(error)
    assert raised.value is error
    document = json.loads(error_file.read_text())
    message = document.pop("message")
    extra = message.pop("extraInfo")
    assert (document, message) == ({}, {"message": "KeyError: 'gone'"})
    assert extra.keys() == {"py_callstack", "timestamp"}
    assert extra["timestamp"].isdigit()
    assert extra["py_callstack"].startswith("Traceback (most recent call last):\n")
    assert extra["py_callstack"].endswith("KeyError: 'gone'\n")
    assert os.listdir(error_file.parent) == ["error.json"]


def test_what_the_function_is_and_returns_stays(error_file: Path) -> None:
    @tr.record
    def one(a: int, *, b: int = 2) -> int:
        """Adds."""
        return a + b

    @tr.record()
    def other(a: int) -> int:
        return -a

    assert (one(1, b=4), other(3)) == (5, -3)
    assert (one.__name__, one.__doc__) == ("one", "Adds.")
    assert list(inspect.signature(one).parameters) == ["a", "b"]
    assert not error_file.exists()


@pytest.mark.parametrize("ending", [SystemExit(3), SystemExit(None), KeyboardInterrupt()])
def test_an_end_on_purpose_is_not_written(error_file: Path, ending: BaseException) -> None:
    with pytest.raises(type(ending)) as raised:
        tr.record(fail)(ending)
    assert raised.value is ending
    assert not error_file.exists()


def test_exit_code_0_returns(error_file: Path) -> None:
    assert tr.record(fail)(SystemExit(0)) is None


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("in __str__")


@pytest.mark.parametrize("value", ["", "/proc/none/error.json", "/", "a\0b", None])
def test_what_cannot_be_written_takes_nobodys_place(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    environ = {} if value is None else {"TORCHELASTIC_ERROR_FILE": value}
    monkeypatch.setattr(os, "environ", environ)
    for error in (ValueError("x"), _Unspeakable(), ValueError("\ud800")):
        with pytest.raises(type(error)) as raised:
            tr.record(fail)(error)
        assert raised.value is error


def test_half_a_surrogate_pair_is_written(error_file: Path) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        tr.record(fail)(ValueError("\ud800"))
    assert json.loads(error_file.read_text())["message"]["message"] == "ValueError: \ud800"


def test_the_name_is_the_decorator_whatever_was_imported_before() -> None:
    code = "import torsh_runtime.error_file, torsh_runtime as tr; assert callable(tr.record)"
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


@pytest.mark.torch
def test_torchs_own_record_writes_the_same(error_file: Path) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")

    def written(decorator: Callable[..., Any]) -> dict[str, Any]:
        error_file.unlink(missing_ok=True)
        with pytest.raises(ZeroDivisionError):
            decorator(lambda: 1 / 0)()
        document = json.loads(error_file.read_text())
        extra = document["message"]["extraInfo"]
        assert int(extra.pop("timestamp")) > 0
        stack = extra.pop("py_callstack").splitlines()
        return {**document, "around": (stack[0], stack[-1]), "extra": extra}

    assert written(tr.record) == written(errors.record)
    for code in (3, None):
        for decorator in (tr.record, errors.record):
            with pytest.raises(SystemExit):
                decorator(fail)(SystemExit(code))
    assert tr.record(fail)(SystemExit(0)) is errors.record(fail)(SystemExit(0)) is None


def test_no_link_leads_elsewhere_where_it_is_written(error_file: Path) -> None:
    precious = error_file.with_name("precious")
    precious.write_text("kept")
    Path(f"{error_file}.{os.getpid()}").symlink_to(precious)
    with pytest.raises(KeyError):
        tr.record(fail)(KeyError("gone"))
    assert precious.read_text() == "kept"
