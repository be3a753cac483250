"""Tables of pipeline schedules: what is published of them, and what is no schedule."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.other_users import needs_root, stranger
from support.pipeline_tables import random_table

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.pipeline import builders, files
from torsh_runtime.parallel.pipeline.__main__ import main
from torsh_runtime.parallel.pipeline.measuring import load_timeline
from torsh_runtime.parallel.pipeline.simulation import Costs, simulate
from torsh_runtime.parallel.pipeline.table import Kind, Table, check

SIZES = [(p, m) for p in range(1, 9) for m in range(1, 33)]


def checked(table: Table) -> Any:
    check(table)
    return simulate(table)


def test_gpipe_and_1f1b_are_as_published() -> None:
    for p, m in SIZES:
        first, second = (
            checked(each) for each in (builders.gpipe(range(p), m), builders.one_f_one_b(p, m))
        )
        for each in (first, second):
            assert each.bubble == pytest.approx((p - 1) / (m + p - 1))
        assert set(first.peaks) == {m}
        assert second.peaks == tuple(min(m, p - rank) for rank in range(p))


def test_interleaved_is_as_published() -> None:
    for p, m in SIZES:
        for v in (2, 3) if m % p == 0 else ():
            found = checked(builders.interleaved(p, m, v))
            assert found.makespan == 3 * (m * v + p - 1)  # a bubble of (p - 1) / v microbatches
            expected = [min(m * v, (v - 1) * p + 2 * (p - 1 - r) + 1) for r in range(p)]
            assert found.peaks == tuple(expected)


def test_zero_bubbles_are_as_published() -> None:
    for p, m in SIZES:
        h1, zbv = checked(builders.zb_h1(p, m)), checked(builders.zbv(p, m))
        assert max(h1.peaks) <= p
        assert max(zbv.peaks) <= 2 * p  # of half stages
        if m >= p:
            assert h1.makespan == 3 * m + p - 1
        if m >= 2 * p - 1:
            assert not any(zbv.idle)
            assert zbv.makespan == 6 * m + p - 1


def test_forward_only_takes_a_wave() -> None:
    for p, m in SIZES:
        assert checked(builders.forward_only(range(p), m)).makespan == m + p - 1


def test_a_forward_pass_ahead_hides_slow_links() -> None:
    slow = Costs(transfer=1)
    free = simulate(builders.one_f_one_b(2, 8)).makespan
    plain, ahead = (simulate(builders.one_f_one_b(2, 8, n), slow).makespan for n in (0, 1))
    assert plain / free > 1.29
    assert ahead / free < 1.08


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 4), (3, 6), (4, 8), (4, 16)])
def test_tables_are_torchs(p: int, m: int) -> None:
    from torch.distributed.pipelining import schedules as theirs

    def rows(kind: Any, per_rank: int) -> Any:
        rounds = max(1, m // p)
        facts = SimpleNamespace(
            n_local_stages=per_rank,
            pp_group_size=p,
            _n_microbatches=m,
            _num_stages=p * per_rank,
            num_stages=p * per_rank,
            number_of_rounds=rounds,
            microbatches_per_round=m // rounds,
            rank=0,
        )
        if hasattr(kind, "_calculate_single_rank_operations"):
            return [kind._calculate_single_rank_operations(facts, rank) for rank in range(p)]
        order = kind._get_pipeline_order(facts)
        return [order[rank] for rank in range(p)]

    def text(row: Any) -> list[str]:
        """Without the microbatches of W, of which ours takes the newest first."""
        texts = (str(each) for each in row if each is not None)
        return [re.sub(r"W\d+", "W", each) for each in texts if "REDUCE" not in each]

    pairs = [
        (theirs.ScheduleGPipe, 1, builders.gpipe(range(p), m)),
        (theirs.Schedule1F1B, 1, builders.one_f_one_b(p, m)),
        (theirs.ScheduleInterleaved1F1B, 2, builders.interleaved(p, m, 2)),
        (theirs.ScheduleInterleavedZeroBubble, 1, builders.zb_h1(p, m)),
        (theirs.ScheduleZBVZeroBubble, 2, builders.zbv(p, m)),
    ]
    for kind, per_rank, ours in pairs:
        found, expected = (list(map(text, each)) for each in (rows(kind, per_rank), ours.rows))
        if ours.name == "1f1b":  # torch does not run its own table, whose last rank has no F0
            found, expected = ([[s[:2] for s in r] for r in each] for each in (found, expected))
        assert found == expected, ours.name


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_files_keep_tables(tmp_path: Path, suffix: str) -> None:
    table = builders.zbv(2, 3).with_reductions()
    files.save_table(table, tmp_path / f"t.{suffix}")
    assert files.load_table(tmp_path / f"t.{suffix}").rows == table.rows


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"0F0,999999999F0,0B0"),
        ("t.csv", b"0F" + b"9" * 5000),
        ("t.csv", b"0F999999,0B999999,999998F0"),
        ("t.csv", "\u0660F\u0660,0B0".encode()),
        ("t.csv", b"\xff\xfe0F0"),
        ("t.csv", b"0F0," + b"x" * 200_000),
        ("t.csv", b""),
        ("t.csv", b"0F0\n" * 1000),
        ("t.json", b"[" * 100_000),
        ("t.json", b'{"ranks": [[["0F0"]]]}'),
        ("t.json", b'{"name": "\\u001b[31m", "ranks": [["0F0", "0B0"]]}'),
        ("t.json", b'{"name": ["a"], "ranks": [["0F0", "0B0"]]}'),
    ],
)
def test_files_of_anything_else_are_refused_at_once(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        check(files.load_table(tmp_path / name))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("kind", ["endless", "a pipe", "a directory", "large"])
def test_what_may_have_no_end_is_no_table(tmp_path: Path, kind: str) -> None:
    """Neither is it read until memory is full, nor waited for."""
    path = tmp_path / "t.csv"
    if kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 36)
    for load in (files.load_table, load_timeline):
        with pytest.raises(ConfigError, match=r"no regular file|larger than"):
            load(path)


def test_what_cannot_be_read_after_all_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(ConfigError, match=r"t\.csv cannot be read: Input/output error"):
        files.load_table(path)


@needs_root
@pytest.mark.parametrize("load", [files.load_table, load_timeline])
def test_what_this_user_may_not_read_is_named(tmp_path: Path, load: Any) -> None:
    def read(_: Any) -> str:
        try:
            load(path)
        except ConfigError as error:
            return str(error)
        return ""

    path = tmp_path / "table.csv"
    path.touch(0o600)
    with stranger(read) as other:
        assert f"{path} cannot be read: Permission denied. Name a file that user" in other.says()


@pytest.mark.parametrize(
    "times", [["nan", 1], [0, 1e999], [-1e12, 1], [5, 1], [0], "ab", {"a": 1}], ids=str
)
def test_times_that_no_run_has_are_no_timeline(tmp_path: Path, times: object) -> None:
    table = {"name": "t", "ranks": [["0F0", "0B0"]]}
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"table": table, "spans": [[times, [1, 2]]]}))
    with pytest.raises(ConfigError, match=r"no timeline of save_timeline\(\)"):
        load_timeline(path)


@pytest.mark.parametrize(
    "options", ["--save t.txt", "--forward nan", "--forward 1e308", "--microbatches 0"]
)
def test_options_that_draw_nothing_are_refused(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["draw", "gpipe", *options.split()])
    assert not [*tmp_path.iterdir()]


def test_empty_lines_at_the_end_are_of_no_rank() -> None:
    assert len(files.from_csv("0F0,0B0\n\n\n").rows) == 1


def test_tables_of_torch_are_read() -> None:
    text = (
        "0UNSHARD,0F0,,0SEND_F0,0F1,0RECV_B0,0B0,0B1,0REDUCE_GRAD\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n"
    )
    found = files.from_csv(text)
    assert " ".join(map(str, found.rows[0])) == "0UNSHARD 0F0 0F1 0B0 0B1 0REDUCE_GRAD"
    assert " ".join(map(str, found.rows[1])) == "1F0 1F1 1B0 1B1"
    with pytest.raises(ConfigError, match="rank 1, cell 2: '1X0'"):
        files.from_csv("0F0\n1F0,1X0\n")


def of(*rows: str) -> Table:
    return files.from_csv("\n".join(row.replace(" ", ",") for row in rows))


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (of("0F0 0F1 0B0 0B1", "1F0 1F1 1B0"), "1B1 is missing"),
        (of("0F0 0B0 0F0", "1F0 1B0"), "0F0 is there 2 times"),
        (of("0F0 0B0", "1F0 1I0"), "1W0 is missing"),
        (of("0F0 0B0 0W0", "1F0 1B0"), "0B0 is there beside 0W0"),
        (of("0F0 0REDUCE_GRAD 0B0", "1F0 1B0"), "0B0 comes after its stage's reduction"),
        (of("0F0 0B0 1B0", "1F0"), "stage 1 is on rank 0 and 1"),
        (of("1F0 1B0", "0F0 0B0"), "stage 0 has its steps on rank 1, and is placed on rank 0"),
        (of("0F0 0B0", "1F0 1B0 2F0"), "2F0 is of a stage that there is not"),
    ],
)
def test_what_is_amiss_is_named(table: Table, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check(table, 2, table.num_microbatches, (0, 1))


def test_reductions_follow_a_stages_last_backward_pass() -> None:
    assert [str(s) for s in builders.zb_h1(2, 2).with_reductions().rows[1]] == [
        *("1F0", "1I0", "1F1", "1I1", "1W1", "1W0", "1REDUCE_GRAD")
    ]


def test_random_tables_end() -> None:
    for seed in range(1000):
        found = checked(random_table(seed))
        assert sum(map(len, found.spans)) == sum(map(len, found.table.rows))


def with_circle(seed: int) -> Table:
    """A random table in which a step stands before one that it waits for, if by way of others."""
    source = random.Random(seed)
    table = random_table(seed)
    placement, stages = table.placement, table.num_stages
    back = source.choice([s for s in table.steps() if s.kind in (Kind.BACKWARD, Kind.INPUT)])
    row = list(table.rows[placement[back.stage]])
    earlier = [
        s
        for s in row
        if s.kind is Kind.FORWARD and s.microbatch == back.microbatch and s.stage <= stages
    ]
    first = source.choice(earlier)
    row.remove(back)
    row.insert(row.index(first), back)
    rows = [row if rank == placement[back.stage] else each for rank, each in enumerate(table.rows)]
    return replace(table, rows=tuple(map(tuple, rows)))


def test_circles_are_named() -> None:
    link = re.compile(r"(\w+) waits for (\w+) \(rank (\d+)(?:, behind (\w+))?\)")
    for seed in range(1000):
        table = with_circle(seed)
        check(table)
        with pytest.raises(ConfigError, match="in a circle") as caught:
            simulate(table)
        links = link.findall(str(caught.value))
        for (step, needed, rank, behind), (after, *_) in zip(
            links, links[1:] + links[:1], strict=True
        ):
            row = [str(each) for each in table.rows[int(rank)]]
            assert row.index(needed) >= row.index(behind or needed)
            assert after == (behind or needed)
            assert step != needed
