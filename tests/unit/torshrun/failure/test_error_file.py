"""error.json, as workers leave it and as it is left for a launcher above."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.exits import VALUE_ERROR, an_exit

from torsh_runtime.error_file import leave_account
from torsh_runtime.errors import CommTimeout
from torshrun.failure.account import Account, parse
from torshrun.failure.ending import Ending
from torshrun.failure.error_file import ACCOUNT_BYTES, load_account, write_account
from torshrun.failure.exit_diagnosis import blamed, diagnose
from torshrun.failure.kinds import Kind
from torshrun.failure.last_words import last_words


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"message": {"message": "m", "extraInfo": {"py_callstack": "stack"}}}, "stack"),
        ({"message": {"message": "m"}}, "m"),
        ({"message": "m"}, "m"),
        ({"message": {"message": "m", "extraInfo": 3}}, "m"),
        ({"message": 4}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_what_a_document_says(document: object, text: str, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps(document))
    assert load_account(str(path)).text == text


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 9999, b'{"message": "' + b"x" * ACCOUNT_BYTES],
)
def test_nonsense_is_no_account(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(content)
    assert load_account(str(path)).text == ""


def test_what_is_no_file_is_no_account(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "none", "/dev/zero", "a\0b"):
        assert load_account(str(path)).text == ""


def test_the_root_cause_is_left_for_a_launcher_above(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text("of an attempt before")
    write_account(str(path), an_exit(3, 1 << 8, stderr=VALUE_ERROR), 1700000000.9, "Rank 3 ...")
    assert json.loads(path.read_text()) == {
        "message": {
            "message": "ValueError: bad",
            "errorCode": 1,
            "extraInfo": {
                "py_callstack": VALUE_ERROR.decode().rstrip(),
                "timestamp": "1700000000",
                "rank": 3,
                "pid": json.loads(path.read_text())["message"]["extraInfo"]["pid"],
                "status": 256,
                "report": "Rank 3 ...",
            },
        }
    }
    assert os.listdir(tmp_path) == ["error.json"]


def test_a_silent_death_is_left_too(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    write_account(str(path), an_exit(3, 9), 0)
    assert load_account(str(path)).text == "rank 3: killed by SIGKILL, exit code 137"


def test_where_it_cannot_be_left_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        write_account(str(tmp_path / "none" / "error.json"), an_exit(3, 9), 0)


def test_no_link_leads_elsewhere_where_it_is_left(tmp_path: Path) -> None:
    """The name that is written to first can be guessed."""
    path, precious = tmp_path / "error.json", tmp_path / "precious"
    precious.write_text("kept")
    Path(f"{path}.{os.getpid()}").symlink_to(precious)
    with pytest.raises(FileExistsError):
        write_account(str(path), an_exit(3, 9), 0)
    assert precious.read_text() == "kept"


def test_words_that_are_no_text_are_none() -> None:
    nested = '{"a":' * 300 + "1" + "}" * 300
    content = f'{{"message": {{"message": {nested}, "extraInfo": {{"py_callstack": [1]}}}}}}'
    assert parse(content).text == ""


@pytest.mark.parametrize("status", [signal.SIGABRT, 1 << 8])
def test_the_reason_for_which_a_process_ended_itself_is_what_counts(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    leave_account(ValueError("handled"))
    error = CommTimeout("all_reduce", 12, 5.0, (0,), "")
    error.members = (1, 2)
    leave_account(error, is_end=True)
    said = f"torsh: has failed: {error}\nFatal Python error: Aborted\n".encode()
    account = load_account(str(path))
    exit_ = an_exit(2, status, ending=Ending(is_watched=True), stderr=said, account=account)
    blame = blamed(exit_)
    assert blame is not None
    assert blame.ranks == (1,)
    assert last_words(exit_).errors[0].startswith(f"torsh_runtime.errors.CommTimeout: {error}")
    killed = an_exit(2, signal.SIGSEGV, stderr=b"", account=account)
    assert blamed(killed) is None, "it did not end itself"


def test_the_kind_of_a_gpus_failure_is_told_though_the_process_was_aborted() -> None:
    text = "CommError: nccl failed in all_reduce: CUDA error: uncorrectable ECC error encountered"
    account = Account(text=text, is_end=True)
    exit_ = an_exit(0, signal.SIGABRT, stderr=b"Fatal Python error: Aborted\n", account=account)
    assert diagnose(exit_).kind is Kind.GPU
