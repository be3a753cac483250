"""Settings that are wrong on a rank, or differ from rank to rank: all ranks end, and say why."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.ports import free_address

import torsh_runtime as tr

World = Callable[..., list[Any]]


def texts(results: list[Any]) -> list[str]:
    errors = [result.error.trace for result in results if isinstance(result, Raised)]
    assert not errors, "\n".join(errors)
    return results


class Refusing:
    """What becomes of default groups of so many ranks that are made with wrong settings."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._wrong, self._right = free_address(), free_address()

    def words(
        self, rank: int, settings: Mapping[str, str], kind: type[Exception] = tr.ConfigError
    ) -> str:
        """What is raised with these variables; without them there is a group again."""
        tr.destroy_process_group()
        os.environ.update(settings)
        with pytest.raises(kind) as caught:
            tr.init_process_group("native", self._wrong, 20.0, self._ranks, rank)
        for name in settings:
            del os.environ[name]
        tr.init_process_group("native", self._right, 20.0, self._ranks, rank)
        array = np.ones(1)
        tr.all_reduce(array)
        assert array[0] == self._ranks
        return str(caught.value)


def test_ranks_with_different_algorithms_are_refused(process_world: World) -> None:
    refusing = Refusing(3)

    def body(rank: int) -> str:
        return refusing.words(rank, {"TORSH_ALGORITHM": "ring" if rank == 1 else "tree"})

    for text in texts(process_world(3, body, 30.0)):
        assert "ranks 0 and 1 have different settings" in text
        assert "TORSH_ALGORITHM is tree on rank 0 and ring on rank 1" in text


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"tcp": {"tree": 1024}}, "tcp.tree is 65536 on rank 0 and 1024 on rank 1"),
        (
            {"shm": {"2": {"block_bytes": 8192}}},
            "shm.2.block_bytes is not given on rank 0 and 8192",
        ),
    ],
)
def test_ranks_with_different_tuning_are_refused(
    process_world: World, tmp_path: Path, sections: Mapping[str, Any], words: str
) -> None:
    files = [tmp_path / "0", tmp_path / "1"]
    for file, content in zip(files, [{}, sections], strict=True):
        file.write_text(json.dumps({"version": 1, **content}))
    refusing = Refusing(2)

    def body(rank: int) -> str:
        return refusing.words(rank, {"TORSH_TUNING": str(files[rank])})

    for text in texts(process_world(2, body, 30.0)):
        assert words in text


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("name", "value"),
    [("TORSH_ALGORITHM", "best"), ("TORSH_HEARTBEAT", "0"), ("TORSH_TUNING", "/none/such")],
)
def test_the_others_hear_what_is_wrong_on_one_rank(
    process_world: World, name: str, value: str, victim: int
) -> None:
    refusing = Refusing(2)

    def body(rank: int) -> str:
        if rank == victim:
            return refusing.words(rank, {name: value})
        return refusing.words(rank, {}, tr.CommError)

    for text in texts(process_world(2, body, 30.0)):
        assert f"{name}={value}" in text.replace("'", "")


def test_further_groups_have_the_settings_of_the_first(process_world: World) -> None:
    def body(rank: int) -> float:
        os.environ["TORSH_ALGORITHM"] = ("ring", "best")[rank]
        array = np.ones(1)
        tr.all_reduce(array, group=tr.new_group())
        return float(array[0])

    assert process_world(2, body, 30.0) == [2.0, 2.0]


def test_the_others_hear_of_a_block_that_is_too_small(process_world: World, tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps({"version": 1, "shm": {"1": {"block_bytes": 0, "whole_limit": 0}}}))
    refusing = Refusing(2)

    def body(rank: int) -> str:
        return refusing.words(rank, {"TORSH_TUNING": str(file)})

    for text in texts(process_world(2, body, 30.0)):
        assert "block_bytes (0)" in text


def test_the_default_group_is_refused_alike(process_world: World) -> None:
    """Its store goes with rank 0."""
    first, second = free_address(), free_address()

    def body(rank: int) -> str:
        tr.destroy_process_group()
        os.environ["TORSH_ALGORITHM"] = ("ring", "tree")[rank]
        with pytest.raises(tr.ConfigError) as caught:
            tr.init_process_group("native", first, 20.0, 2, rank)
        del os.environ["TORSH_ALGORITHM"]
        tr.init_process_group("native", second, 20.0, 2, rank)
        return str(caught.value)

    for text in texts(process_world(2, body, 30.0)):
        assert "ring on rank 0 and tree on rank 1" in text


def test_the_positional_order_is_torchs() -> None:
    order = list(inspect.signature(tr.init_process_group).parameters)
    assert order[:5] == ["backend", "init_method", "timeout", "world_size", "rank"]
    assert order[5:] == ["store", "group_name", "pg_options", "device_id"]
    group = tr.init_process_group("single", None, timedelta(seconds=7), 1, 0)
    try:
        assert (group.timeout, group.rank, group.world_size) == (7.0, 0, 1)
    finally:
        tr.destroy_process_group()


def test_a_wait_takes_a_timedelta_too(process_world: World) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            work = tr.all_reduce(np.ones(10), async_op=True)
            for brief in (0.01, timedelta(milliseconds=10)):
                with pytest.raises(tr.CommTimeout, match=r"after 0\.01 s"):
                    work.wait(brief)
            tr.send(np.zeros(1), 1)
            assert work.wait(timedelta(seconds=20))
        else:
            tr.recv(np.zeros(1), 0)
            tr.all_reduce(np.ones(10))

    texts(process_world(2, body, 30.0))
