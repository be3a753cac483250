"""What the native backend's tuning file may say."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torsh_runtime.backends.native._native")
from torsh_runtime.backends.native.tuning import TuningFile
from torsh_runtime.errors import ConfigError


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """The file with these sections."""

    def write(**sections: object) -> TuningFile:
        path = tmp_path / "tuning.json"
        path.write_text(json.dumps({"version": 1, **sections}))
        return TuningFile.read({"TORSH_TUNING": str(path)})

    return write


@pytest.mark.parametrize("ranks", [1, 2, 16, 100, 1024, 4000])
def test_without_a_file_every_rank_has_its_part_of_a_block(ranks: int) -> None:
    tuning = TuningFile({}, {}).tuning(ranks)
    assert 0 < tuning.whole_limit <= tuning.crowded_whole_limit <= tuning.block_bytes
    assert tuning.block_bytes % 4096 == 0
    assert tuning.block_bytes >= max(128 * ranks, 65536)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes a user without a name")
def test_a_user_without_a_home_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    nobody = max(entry.pw_uid for entry in pwd.getpwall()) + 1
    child = os.fork()
    if child == 0:
        os.setuid(nobody)
        os._exit(TuningFile.read({}).in_nodes() != {})
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_file_in_the_home_of_somebody_unknown_is_not_there() -> None:
    with pytest.raises(ConfigError, match="No such file"):
        TuningFile.read({"TORSH_TUNING": "~nobody-of-this-name/tuning.json"})


@pytest.mark.parametrize("named", [False, True])
def test_what_is_no_file_of_values_is_refused_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """HOME may be another user's, who can put anything there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".config" / "torsh" / "tuning.json"
    path.parent.mkdir(parents=True)
    environ = {"TORSH_TUNING": str(path)} if named else {}
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="cannot be used"):
        TuningFile.read(environ)
    for text in ("[" * 100_000, "{", "[]", "\0"):
        path.unlink()
        path.write_text(text)
        with pytest.raises(ConfigError, match="cannot be used"):
            TuningFile.read(environ)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="cannot be used"):
        TuningFile.read(environ)


@pytest.mark.parametrize(("ranks", "block"), [(1, 0), (2, 0), (40, 4096), (1024, 65536), (2, 4160)])
def test_blocks_too_small_for_the_ranks_are_refused(read: Any, ranks: int, block: int) -> None:
    made = read(shm={str(ranks): {"block_bytes": block, "whole_limit": 0}})
    with pytest.raises(ConfigError, match=f"block_bytes \\({block}\\) .* {ranks} ranks"):
        made.tuning(ranks)


def test_with_more_ranks_fewer_bytes_are_reduced_by_all() -> None:
    tunings = [TuningFile({}, {}).tuning(ranks) for ranks in (4, 8, 16, 64, 192)]
    assert [tuning.whole_limit for tuning in tunings] == [4096, 1024, 256, 128, 128]
    crowded = [tuning.crowded_whole_limit for tuning in tunings]
    assert crowded == [4096, 4096, 4096, 512, 170]


def test_a_measured_limit_counts_crowded_or_not(read: Any) -> None:
    made = read(shm={"2": {"whole_limit": 8192}, "4": {"crowded_whole_limit": 64}})
    limits = [(made.tuning(n).whole_limit, made.tuning(n).crowded_whole_limit) for n in (2, 4)]
    assert limits == [(8192, 8192), (4096, 64)]


def test_a_block_holds_what_all_reduce_at_once(read: Any) -> None:
    made = read(shm={"2": {"block_bytes": 4096, "whole_limit": 8192}})
    with pytest.raises(ConfigError, match="at least 8192"):
        made.tuning(2)


def test_the_nearest_lower_number_of_ranks_counts(read: Any) -> None:
    made = read(shm={"2": {"block_bytes": 8192}, "8": {"block_bytes": 16384}})
    assert [made.tuning(ranks).block_bytes for ranks in (2, 7, 8, 9)] == [8192, 8192, 16384, 16384]
    assert made.tuning(1).block_bytes == 512 << 10


def test_terms_name_every_value(read: Any) -> None:
    made = read(shm={"2": {"block_bytes": 8192}}, tcp={"tree": 1024})
    assert made.in_nodes() == {"shm.2.block_bytes": 8192}
    assert made.between_nodes()["tcp.tree"] == 1024
    assert set(made.between_nodes()) == {"tcp.leader", "tcp.tree", "tcp.segment", "tcp.block"}
