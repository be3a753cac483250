"""The last operations of ranks, as one node tells another of them."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Group, Whereabouts
from torshrun.failure.exported_reports import TESTIMONY_CHARS, decode_trails
from torshrun.failure.exported_reports import encode as tell
from torshrun.failure.graph import find
from torshrun.failure.rank_report import RankReport
from torshrun.failure.trails import TRAIL_CHARS, Node, Trails, conclude, decode, encode


def call(number: int, state: str = "done", group: int = 0, elements: int = 8) -> Operation:
    return Operation(
        number=number,
        operation="all_reduce",
        dtype="float32",
        reduction="SUM",
        elements=elements,
        nbytes=4 * elements,
        root=-1,
        arrays=0,
        group=group,
        ranks=4,
        sequence=number,
        state=state,
        entered=number - 100.0,
        came=None,
        left=None if state == "running" else number - 99.5,
    )


def of_node(first: int, late: int = -1, count: int = 60) -> Trails:
    """Two ranks, of which `late` has not made the last call."""
    ranks = (first, first + 1)
    calls = [call(number) for number in range(count)]
    inside = {rank: [*calls, call(count, "running")] for rank in ranks}
    return Trails(
        {**inside, **({late: calls} if late >= 0 else {})},
        {rank: Whereabouts(7, -20.0, "data", -3.5) for rank in ranks},
        {0: Group(0, 4, "dp", "0-3")},
    )


def test_nodes_join_what_they_tell() -> None:
    nodes = [of_node(0), of_node(2, late=3)]
    texts = [encode(each) for each in nodes]
    assert all(0 < len(text) <= TRAIL_CHARS for text in texts)
    read = [decode(text, range(2 * at, 2 * at + 2)) for at, text in enumerate(texts)]
    concluded = conclude([Node(f"n{at}", each) for at, each in enumerate(read) if each])
    assert concluded.culprit is not None
    assert concluded.culprit.ranks == (3,)
    assert concluded.lines[0].startswith(
        "rank 3 on n1 never entered all_reduce(float32[8], SUM) #60 of the default group: in "
        "section data since 3.5 s, step 7; ranks 0, 1, 2 wait in it since 40.0 s"
    )


def test_they_go_with_the_testimony_and_into_the_finding() -> None:
    node = of_node(2, late=3)
    witnesses = [RankReport(rank=rank, end="stopped") for rank in (2, 3)]
    text = tell(witnesses, "no progress", encode(node))
    assert len(text) <= TESTIMONY_CHARS
    trails = decode_trails(text, range(2, 4))
    assert trails is not None
    finding = find(witnesses, hang="no progress", recorded=conclude([Node("n", trails)]))
    assert finding is not None
    assert "rank 3 never entered" in finding.evidence[0]


def test_nobody_is_believed_about_ranks_of_others() -> None:
    read = decode(encode(of_node(2, late=3)), range(3, 5))
    assert read is not None
    assert [*read.operations] == [3]


def test_many_groups_of_many_ranks_fit() -> None:
    def of_rank(rank: int) -> list[Operation]:
        return [call(n, group=n % 90, elements=n * (rank + 3) % 4093) for n in range(1, 1024)]

    ranks = range(64)
    stands = {rank: Whereabouts(rank, -0.123 * rank, f"section {rank}", -rank) for rank in ranks}
    groups = {n: Group(n, 4, "g" * 48, "") for n in range(90)}
    text = encode(Trails({rank: of_rank(rank) for rank in ranks}, stands, groups))
    assert len(text) <= TRAIL_CHARS


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_nonsense_counts_as_not_said(told: Any) -> None:
    packed = base64.b64encode(zlib.compress(json.dumps(told).encode())).decode()
    decode(packed, range(4))
    decode(str(told), range(4))
    plain = {"ranks": {"1": [told, told]}, "groups": [told]}
    packed = base64.b64encode(zlib.compress(json.dumps(plain).encode())).decode()
    assert decode(packed, range(4)) is None


def test_a_bomb_is_not_unpacked() -> None:
    bomb = base64.b64encode(zlib.compress(b'{"ranks":' + b" " * (1 << 24))).decode()
    assert decode(bomb, range(4)) is None
