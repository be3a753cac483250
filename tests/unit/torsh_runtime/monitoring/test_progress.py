"""progress() stands for tqdm."""

import inspect
import io
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torsh_runtime import monitoring
from torsh_runtime.monitoring.bar_text import Look, clock, text_of
from torsh_runtime.monitoring.notes import Note

Noted = Callable[[], list[Note]]


def test_it_gives_what_it_is_given_and_leaves_a_line(noted: Noted) -> None:
    file = io.StringIO()
    bar = monitoring.progress([3, 1, 2], desc="train", file=file, ncols=60)
    assert list(bar) == [3, 1, 2]
    assert len(bar) == bar.n == 3
    lines = file.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("train: 100%|#")
    assert "| 3/3 [00:00<00:00, " in lines[0]


def test_it_is_updated_by_hand(noted: Noted) -> None:
    file = io.StringIO()
    with monitoring.progress(total=100, unit="B", unit_scale=True, file=file) as bar:
        for _ in range(4):
            bar.update(25)
        bar.set_description("load")
        bar.set_postfix(loss=0.12345, name="x", refresh=False)
    assert file.getvalue().startswith("load: 100%")
    assert "loss=0.123, name=x]" in file.getvalue()
    assert bar.format_dict["n"] == 100
    found = [(each.name, each.value) for each in noted() if each.kind == "scalar"]
    assert found[-3:] == [("progress/done", 100.0), ("progress/total", 100.0), ("loss", 0.12345)]


def test_the_innermost_bar_is_the_one_that_is_noted(noted: Noted) -> None:
    outer = monitoring.progress(range(2), disable=True, mininterval=0)
    inner = monitoring.progress(range(30), disable=True, mininterval=0)
    outer.update()
    inner.update()
    inner.close()
    outer.update()
    told = [(each.name, each.value) for each in noted() if each.name.startswith("progress")]
    assert told[2:] == [
        *(("progress/done", 0), ("progress/total", 30)),
        *(("progress/done", 1), ("progress/total", 30)),
        *(("progress/done", 1), ("progress/total", 30)),
        *(("progress/done", 2), ("progress/total", 2)),
    ]
    outer.close()


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ({}, True),
        ({"disable": True}, False),
        ({"disable": None}, False),  # no terminal
        ({"leave": False}, False),
        ({"ascii": True, "colour": "green", "dynamic_ncols": True, "position": 1}, True),
        ({"miniters": 5, "maxinterval": 3, "smoothing": 0, "bar_format": "{l_bar}"}, True),
    ],
)
def test_arguments_of_tqdm(noted: Noted, named: dict[str, Any], shown: bool) -> None:
    file = io.StringIO()
    assert sum(monitoring.progress(range(4), file=file, **named)) == 6
    assert bool(file.getvalue()) == shown


def test_other_arguments_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="progress\\(\\) does not know color, write_bytes"):
        monitoring.progress([], color="red", write_bytes=True)


def test_all_arguments_of_tqdm_are_known_or_refused() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    given = inspect.signature(tqdm.__init__).parameters
    own = inspect.signature(monitoring.progress).parameters
    shared = [name for name in given if name in own and name not in ("self", "kwargs")]
    assert [own[name].default for name in shared] == [given[name].default for name in shared]
    refused = set()
    for name in given.keys() - own.keys() - {"self", "kwargs"}:
        try:
            monitoring.progress([], disable=True, **{name: None}).close()
        except TypeError:
            refused.add(name)
    assert refused == {"write_bytes", "gui"}


def test_only_rank_0_shows_it(noted: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    file = io.StringIO()
    assert list(monitoring.progress(range(3), file=file)) == [0, 1, 2]
    assert file.getvalue() == ""
    assert [each.value for each in noted() if each.name == "progress/done"][-1] == 3


def test_a_bar_that_is_left_without_an_end_is_closed(noted: Noted) -> None:
    file = io.StringIO()
    outer = monitoring.progress(total=2, desc="outer", file=file, mininterval=0)
    inner = monitoring.progress(total=30, desc="inner", file=file)
    inner.update(30)
    del inner
    assert file.getvalue().startswith("inner: 100%")
    outer.update()
    assert [each.value for each in noted() if each.name == "progress/total"][-1] == 2


def test_a_forked_child_leaves_no_line_of_its_parents_bar(noted: Noted, tmp_path: Path) -> None:
    with (tmp_path / "lines").open("w") as file:
        bar = monitoring.progress(range(3), file=file)
        child = os.fork()
        if not child:
            bar.close()
            os._exit(0)
        os.waitpid(child, 0)
        bar.close()
    assert len((tmp_path / "lines").read_text().splitlines()) == 1


@pytest.mark.parametrize("total", [math.nan, math.inf])
def test_a_total_without_an_end_is_none(noted: Noted, total: float) -> None:
    assert sum(monitoring.progress([1, 2], total=total, file=io.StringIO())) == 3
    with pytest.raises(TypeError, match="total='3' is no number"):
        monitoring.progress(total="3")  # type: ignore[arg-type]


def test_numbers_that_make_no_bar_break_nothing(noted: Noted) -> None:
    assert text_of("", math.nan, 10, 1.0, "", Look(), 60).startswith("nanit [")
    assert text_of("", 3, -1, 1.0, "", Look(), 60).startswith("3it [")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_at_a_terminal_it_stays_in_its_line(noted: Noted) -> None:
    file = Terminal()
    bar = monitoring.progress(range(3), file=file, mininterval=0, ncols=50)
    for _ in bar:
        bar.write("said", file=file)
    *drawn, last = file.getvalue().split("\r")
    assert last.endswith("\n")
    assert all(len(each) <= 50 for each in drawn if "\n" not in each)
    assert file.getvalue().count("said\n") == 3


def test_a_loop_that_is_left_closes_it(noted: Noted) -> None:
    file = io.StringIO()
    for number in monitoring.progress(range(100), file=file):
        if number == 4:
            break
    assert "| 4/100 [" in file.getvalue()


def test_what_has_no_length_is_counted(noted: Noted) -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)

    file = io.StringIO()
    bar = monitoring.progress(numbers(), file=file, unit="line")
    assert sum(bar) == 10
    assert file.getvalue().startswith("5line [00:00, ")
    with pytest.raises(TypeError, match="no length"):
        len(bar)


def test_a_file_that_is_gone_ends_nothing(noted: Noted) -> None:
    file = io.StringIO()
    file.close()
    assert list(monitoring.progress(range(3), file=file)) == [0, 1, 2]


def test_passes_of_a_loop_are_steps_where_nobody_marks_any(
    noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torsh_runtime.monitoring.progress_bar._STEP_SECONDS", 0)
    list(monitoring.progress(range(3), disable=True))
    assert [each.value for each in noted() if each.kind == "step"] == [1, 2, 3]
    for number in monitoring.progress(range(3), disable=True):
        monitoring.step(10 + number)
    assert [each.value for each in noted() if each.kind == "step"] == [1, 2, 3, 10, 11, 12]


def test_the_text_of_a_bar() -> None:
    def text(n: float, total: float | None, seconds: float, width: int = 70, **look: Any) -> str:
        return text_of("train", n, total, seconds, "loss=0.42", Look(**look), width)

    assert text(120, 1000, 37.5) == (
        "train:  12%|#            | 120/1000 [00:37<04:35, 3.20it/s, loss=0.42]"
    )
    assert text(0, 1000, 0.0).endswith("0/1000 [00:00<?, ?it/s, loss=0.42]")
    assert "5.00s/it" in text(2, 10, 10.0)
    assert text(1_200_000, None, 2.0, unit="B", scale=True) == (
        "train: 1.20MB [00:02, 600kB/s, loss=0.42]"
    )
    assert text(120, 1000, 37.5, width=10) == "train:  12"
    assert clock(3665) == "1:01:05"
    assert clock(float("nan")) == "?"


def test_it_goes_to_stderr(noted: Noted, capsys: pytest.CaptureFixture[str]) -> None:
    list(monitoring.progress(range(3)))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "3/3" in captured.err
    assert sys.stderr is not None
