"""torshctl flight, of what the nodes of a job have kept."""

from __future__ import annotations

import json
import os
import struct
from array import array
from pathlib import Path
from typing import Any

import pytest

from torsh_runtime.enumerations import OPERATIONS
from torsh_runtime.monitoring import layout
from torsh_runtime.monitoring.flight import group_named
from torsh_runtime.monitoring.layout import INSIDE, LEFT
from torsh_runtime.monitoring.notes import Group, Notebook
from torshrun.ctl.flight import show
from torshrun.ctl.places import Unfit
from torshrun.ctl.recorded import Recorded
from torshrun.health.clocks import CommonClock, Reading
from torshrun.health.recordings import common_clock_of, load, save
from torshrun.safe_files import Folder


def recording(last: int, mark: int) -> bytes:
    """A worker's that has begun barriers 0 to `last`, a second apart; the last one is so marked."""
    words = array("Q", bytes(layout.STRIDE))
    words[0] = last + 1
    words[2:6] = array("Q", [0, 0, 10**12, 10**12])  # a tick is a nanosecond
    for number in range(last + 1):
        is_over = number < last or mark == LEFT
        begin = layout.FIRST_ENTRY + number * layout.ENTRY_WORDS
        entered = (number + 1) * 10**9
        words[begin : begin + layout.ENTRY_WORDS] = array(
            "Q",
            [
                (number + 1) << 2 | (LEFT if is_over else mark),
                OPERATIONS.index("barrier") | 0xFFFFFFFF << 32,
                0,
                4 << 32,
                number,
                entered,
                entered + 1000 if is_over else 0,
                entered + 2000 if is_over else 0,
            ],
        )
    return words.tobytes()


def keep(
    folder: Path,
    node: int,
    recordings: list[bytes],
    *,
    run_id: str = "digits",
    at: float = 10.0,
    clock: CommonClock | None = None,
) -> Path:
    """As an agent does, ten seconds after the workers' clocks began."""
    made = Folder.make(str(folder))
    try:
        header = struct.pack("=3Q", layout.MAGIC, layout.VERSION, len(recordings))
        content = header.ljust(layout.HEADER_BYTES, b"\0") + b"".join(recordings)
        save(content, made, run_id, 1, node, 2 * node, at, clock)
    finally:
        made.close()
    return folder / f"attempt_1/operations_{node}.bin"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Those of two nodes with two ranks each, of which rank 3 does not come, and older ones."""
    waits, is_away = recording(5, INSIDE), recording(4, LEFT)
    keep(tmp_path / "one", 0, [waits, waits])
    keep(tmp_path / "two", 1, [waits, is_away])
    os.utime(keep(tmp_path / "three", 2, [waits, is_away]), (1, 1))
    os.utime(keep(tmp_path / "before", 1, [is_away, is_away]), (1, 1))
    os.utime(keep(tmp_path / "other", 0, [is_away], run_id="other"), (2, 2))
    (tmp_path / "operations_9.bin").write_bytes(b"nonsense")
    return tmp_path


def test_the_nodes_of_the_newest_attempt_are_joined(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(str(logs), 1, as_json=False) == 0
    host = os.uname().nodename
    assert capsys.readouterr().out.splitlines() == [
        f"run digits, attempt 1, 4 ranks of {host}",
        "  rank 3 never entered barrier() #5 of the default group; ranks 0, 1, 2 wait in it since "
        "4.0 s; rank 3 was last in barrier() #4 of the default group, 5.0 s ago",
        "  rank 0: barrier() #5 of the default group, running since 4.0 s",
        "  rank 1: barrier() #5 of the default group, running since 4.0 s",
        "  rank 2: barrier() #5 of the default group, running since 4.0 s",
        "  rank 3: barrier() #4 of the default group: took 0.002 ms, waited 0.001 ms, ended 5.0 s "
        "ago",
    ]


def test_all_of_it_as_json(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(str(logs), 0, as_json=True) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["groups"] == [
        {"group": 0, "name": "", "size": 4, "members": [0, 1, 2, 3], "first_sequence": 0}
    ]
    assert [len(held) for held in told["ranks"].values()] == [6, 6, 6, 5]
    assert told["ranks"]["3"][-1]["left"] == pytest.approx(-5.0, abs=1e-3)
    nodes = [(each["node"], each["ranks"], each["clock_bound"]) for each in told["nodes"]]
    assert nodes == [(0, [0, 1], 0.0), (1, [2, 3], pytest.approx(1e-4, abs=1e-4))]


def clock(offset: float, bound: float = 0.0, leader: str = "n0") -> CommonClock:
    return CommonClock(leader, Reading(offset, bound))


def test_the_nodes_times_are_on_the_leaders_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second node has kept its records half a second later."""
    keep(tmp_path / "one", 0, [recording(5, LEFT)], clock=clock(0.0))
    keep(tmp_path / "two", 1, [recording(5, LEFT)], at=10.5, clock=clock(5e-6, 20e-6))
    show(str(tmp_path), 0, as_json=True)
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    last = [told["ranks"][rank][-1]["entered"] for rank in ("0", "2")]
    assert last == pytest.approx([-4.5, -4.5], abs=2e-6)
    assert told["nodes"][1]["clock_bound"] < 20e-6


def test_what_is_not_to_be_compared_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path / "one", 0, [recording(5, LEFT)], clock=clock(0.0))
    keep(tmp_path / "two", 1, [bytes(layout.STRIDE)], clock=clock(7.0, leader="n1"))
    show(str(tmp_path), 0, as_json=False)
    said = capsys.readouterr().out.splitlines()[1]
    assert said == f"  times of rank 2 are those of the clock of {os.uname().nodename} alone"


@pytest.mark.parametrize(
    "told", ["[1]", '["n0", 1]', '["n0", NaN, 0, 0, 0]', '["n0", "x", 0, 0, 0]', "7"]
)
def test_nonsense_is_no_clock(tmp_path: Path, told: str) -> None:
    path = keep(tmp_path / "one", 0, [recording(1, LEFT)], clock=clock(3.0))
    content = path.read_bytes().replace(b'["n0", 3.0, 0.0, 0.0, 0.0]', told.encode().ljust(26))
    path.write_bytes(content)
    dump = load(str(path))
    assert dump is not None
    assert dump.offset is None


@pytest.mark.parametrize(
    "told", ['{"round": Infinity}', '{"at": NaN}', f'{{"at": {10**400}}}', "[" * 4000]
)
def test_a_header_of_nonsense_is_none(tmp_path: Path, told: str) -> None:
    path = keep(tmp_path / "one", 0, [recording(1, LEFT)])
    content = path.read_bytes()
    known = content[64 : layout.HEADER_BYTES].rstrip(b"\0")
    header = {**json.loads(known), **json.loads(told)} if told[0] == "{" else told
    text = header if isinstance(header, str) else json.dumps(header)
    rest = text.encode().ljust(layout.HEADER_BYTES - 64, b"\0")
    path.write_bytes(content[:64] + rest + content[layout.HEADER_BYTES :])
    assert load(str(path)) is None


def test_a_clock_that_no_number_can_hold_is_none() -> None:
    assert common_clock_of(["n0", 10**400, 0, 0, 0]) is None


def test_a_file_is_read_as_far_as_it_has_recordings(tmp_path: Path) -> None:
    path = keep(tmp_path / "one", 0, [recording(1, LEFT)])
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    assert load(str(path)) is not None
    with path.open("r+b") as file:  # the first word says that it is something else
        file.write(bytes(8))
    assert load(str(path)) is None


def test_a_pipe_of_that_name_is_not_waited_for(logs: Path) -> None:
    os.mkfifo(logs / "operations_0.bin")
    (logs / "operations_1.bin").symlink_to("nowhere")
    assert show(str(logs), 0, as_json=False) == 0


def grouped(last: int, mark: int, number: int, name: str) -> bytes:
    """A worker's whose barriers are of the group of this number and name."""
    words = bytearray(recording(last, mark))
    for begun in range(last + 1):
        at = 8 * (layout.FIRST_ENTRY + begun * layout.ENTRY_WORDS + 3)
        struct.pack_into("=Q", words, at, 4 << 32 | number)
    Notebook(memoryview(words)).name_group(Group(number, 4, name, "0-3"))
    return bytes(words)


def test_groups_have_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "one", 0, [grouped(*each, 7, "dp\x1b[2J") for each in ((1, INSIDE), (0, LEFT))])
    assert show(str(tmp_path), 1, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "rank 1 never entered barrier() #1 of group dp; rank 0 waits in it" in lines[1]
    assert lines[2].startswith("  rank 0: barrier() #1 of group dp, running")
    assert group_named(7, {7: "default"}) == "the default group"
    show(str(tmp_path), 0, as_json=True)
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [(each["group"], each["name"]) for each in groups] == [(7, "dp")]


@pytest.mark.parametrize(("now", "named"), [(8.0, 0), (12.0, 1)])
def test_ranks_of_a_running_job_may_wait_for_a_while(
    tmp_path: Path, now: float, named: int
) -> None:
    ranks = [recording(5, INSIDE), recording(4, LEFT)]
    file = keep(tmp_path / "one", 0, ranks, at=now)
    dump = load(str(file))
    assert dump is not None
    assert len(Recorded("pid 1", [dump]).suspicions) == named
    assert len(Recorded("an attempt", [dump], folder="logs").suspicions) == 1


def test_words_of_a_stranger_are_fit_for_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path / "one", 0, [recording(1, LEFT)], run_id="a\x1b[2Jb")
    show(str(tmp_path), 0, as_json=False)
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"nonsense", bytes(200_000)])
def test_where_there_is_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "operations_0.bin").write_bytes(content)
    with pytest.raises(Unfit, match="there are no recorded operations"):
        show(str(tmp_path), 1, as_json=False)
