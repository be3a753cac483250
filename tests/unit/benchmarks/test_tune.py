import json
from pathlib import Path

import pytest

pytest.importorskip("torsh_runtime.backends.native._native")
from benchmarks.tune import merged, parse, write
from benchmarks.tuning_trials import crossover, fastest


def test_a_limit_is_the_size_before_the_other_wins() -> None:
    small = {1: 1.0, 2: 2.0, 4: 9.0, 8: 20.0}
    large = {1: 3.0, 2: 2.5, 4: 4.0, 8: 8.0}
    assert crossover(small, large) == 2
    assert crossover({1: 2.0}, {1: 1.0}) == 0
    assert crossover({1: 1.0, 2: 1.0}, {1: 2.0, 2: 2.0}) == 2


def test_one_slow_time_does_not_decide() -> None:
    small = {1: 1.5, 2: 1.0, 4: 1.0, 8: 9.0}
    assert crossover(small, dict.fromkeys(small, 2.0) | {1: 1.0}) == 4


def test_another_value_is_taken_only_where_it_is_clearly_faster() -> None:
    assert fastest({512: {1: 1.0, 2: 1.0}, 64: {1: 0.99, 2: 0.99}}) == 512
    assert fastest({512: {1: 1.0, 2: 1.0}, 64: {1: 0.5, 2: 1.0}, 128: {1: 0.6, 2: 1.0}}) == 64


def test_a_measurement_keeps_what_is_known_of_other_ranks(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tuning.json"
    write(path, {"shm": {"2": {"whole_limit": 4096}}})
    write(path, {"shm": {"4": {"whole_limit": 8192}}})
    write(path, {"tcp": {"tree": 65536}})
    content = json.loads(path.read_text())
    assert set(content["shm"]) == {"2", "4"}
    assert (content["tcp"], content["version"]) == ({"tree": 65536}, 1)
    assert [entry.name for entry in path.parent.iterdir()] == ["tuning.json"]


def test_a_file_that_is_none_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    path.write_text("[]")
    write(path, {"tcp": {"tree": 1024}})
    assert json.loads(path.read_text())["tcp"] == {"tree": 1024}


def test_new_values_replace_old_ones() -> None:
    assert merged({"shm": {"2": {"a": 1}}}, {"shm": {"2": {"b": 2}}})["shm"] == {"2": {"b": 2}}


def test_the_output_is_where_the_backend_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSH_TUNING", "/some/where.json")
    assert parse([]).output == Path("/some/where.json")
    monkeypatch.delenv("TORSH_TUNING")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert parse([]).output == Path("~/.config/torsh/tuning.json").expanduser()
