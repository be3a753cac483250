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
from torsh_runtime.error_file import leave_account
from torsh_runtime.errors import (
    CommMismatch,
    CommTimeout,
    ConfigError,
    GradientError,
    PeerLost,
    StoreTimeout,
)


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
    assert (document.keys(), message) == ({"torsh"}, {"message": "KeyError: 'gone'"})
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
        document.pop("torsh", None)  # what torchrun does not know
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


# ---- whom an error blames


def blame_of(error_file: Path, error: BaseException) -> Any:
    error_file.unlink(missing_ok=True)
    leave_account(error)
    return json.loads(error_file.read_text())["torsh"].get("blame")


def lost(rank: int, members: tuple[int, ...] = ()) -> PeerLost:
    error = PeerLost(rank, "all_reduce", 3)
    error.members = members
    return error


def raised(error: BaseException, origin: BaseException | None = None) -> BaseException:
    """The error as it is after it was raised, while `origin` was handled."""
    try:
        if origin is None:
            raise error
        try:
            raise origin
        except BaseException:
            raise error
    except BaseException as caught:
        return caught


def test_ranks_are_told_as_the_job_counts_them(error_file: Path) -> None:
    told = {"how": "lost", "ranks": [1], "op": "all_reduce", "calls": {}}
    assert blame_of(error_file, lost(1)) == told
    assert blame_of(error_file, lost(1, (4, 6, 9))) == {**told, "ranks": [6]}
    assert blame_of(error_file, lost(1, (4, -1))) == {**told, "ranks": []}
    assert blame_of(error_file, lost(7, (4, 6))) == {**told, "ranks": []}


def test_both_calls_of_a_mismatch_are_told(error_file: Path) -> None:
    error = CommMismatch(3, 0, "barrier()", 1, "all_reduce(float32[2], SUM)")
    error.members = (2, 5)
    assert blame_of(error_file, error) == {
        "how": "mismatch",
        "ranks": [5],
        "op": "barrier",
        "calls": {"2": "barrier()", "5": "all_reduce(float32[2], SUM)"},
    }


def test_what_others_were_raised_from_counts(error_file: Path) -> None:
    wrapped = raised(RuntimeError("step 3 failed"), lost(2))
    assert blame_of(error_file, wrapped)["ranks"] == [2]
    in_cleanup = raised(lost(2), ValueError("bad batch"))
    assert blame_of(error_file, in_cleanup) is None


def test_errors_that_the_library_made_others_of_do_not(error_file: Path) -> None:
    error = raised(CommTimeout("barrier", 1, 4.0, [1]), StoreTimeout("nobody"))
    assert blame_of(error_file, error)["how"] == "late"
    assert blame_of(error_file, raised(ConfigError("x"))) is None


def test_problems_of_a_backward_pass_are_told_by_rank(error_file: Path) -> None:
    told = blame_of(error_file, GradientError({1: "no gradient"}))
    assert (told["how"], told["calls"]) == ("mismatch", {"1": "no gradient"})


def test_an_account_that_is_there_keeps_its_message(error_file: Path) -> None:
    error_file.write_text(json.dumps({"message": {"message": "of torch's @record"}}))
    leave_account(lost(1))
    document = json.loads(error_file.read_text())
    assert document["message"] == {"message": "of torch's @record"}
    assert document["torsh"]["blame"]["ranks"] == [1]
    leave_account(lost(2))
    assert json.loads(error_file.read_text()) == document


@pytest.mark.parametrize("content", ["[]", "{", "\0"])
def test_what_is_no_account_does_not_end_in_an_error(error_file: Path, content: str) -> None:
    error_file.write_text(content)
    leave_account(lost(1))


def test_an_error_without_a_blame_that_calls_itself_ours_is_none(error_file: Path) -> None:
    class Odd(Exception):
        blame = 3

    Odd.__module__ = "torsh_runtime.errors"
    assert blame_of(error_file, Odd()) is None


@pytest.mark.torch
def test_the_last_call_that_torch_recorded_is_told(error_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
import torch, torch.distributed as dist
from torsh_runtime.error_file import leave_account
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3, 4))
leave_account(KeyError("x"))
dist.destroy_process_group()
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=120, cwd=tmp_path)
    facts = json.loads(error_file.read_text())["torsh"]
    assert facts["recorded"] == {"call": "all_reduce(float32[3, 4])", "group": "0", "number": 1}
    assert facts["versions"]["torch"]


def test_what_this_rank_called_is_told_with_what_it_was_given(error_file: Path) -> None:
    tr.init_process_group("single", world_size=1, rank=0, init_method="tcp://127.0.0.1:1")
    try:
        import numpy as np

        wrong = np.ones((2, 3), object)
        for call, told in (
            (lambda: tr.all_reduce(wrong, op=tr.ReduceOp.MAX), "all_reduce(object[2, 3], MAX)"),
            (lambda: tr.broadcast(wrong, 0), "broadcast(object[2, 3], src=0)"),
            (lambda: tr.all_gather([wrong], wrong), "all_gather(1 x object[2, 3], object[2, 3])"),
            (
                lambda: tr.all_to_all_single(wrong, wrong, [2], [2]),
                "all_to_all_single(object[2, 3], object[2, 3], output_split_sizes=[2], "
                "input_split_sizes=[2])",
            ),
        ):
            with pytest.raises(TypeError) as raised:
                call()
            error_file.unlink(missing_ok=True)
            leave_account(raised.value)
            assert json.loads(error_file.read_text())["torsh"]["call"] == told
    finally:
        tr.destroy_process_group()
