"""Who keeps what of a commit, on nodes of any sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.checkpoint.plan import Held
from torsh_runtime.elastic.plan import plan_commit
from torsh_runtime.layout import Piece, even_cuts


def sharded(ranks: int) -> list[list[Held]]:
    cuts = even_cuts(1000, ranks)
    return [
        [
            Held("same", "float32", Piece.whole((10,))),
            Held("cut", "float64", Piece((1000,), (0,), (1000,), cuts[rank], cuts[rank + 1])),
            Held(f"of {rank}", "int8", Piece.whole((3,))),
        ]
        for rank in range(ranks)
    ]


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_any_node_may_be_lost(sizes: list[int]) -> None:
    nodes = [str(node) for node, size in enumerate(sizes) for _ in range(size)]
    held = sharded(len(nodes))
    plans = [plan_commit(held, nodes, rank) for rank in range(len(nodes))]
    copied = [other for plan in plans for other, _ in plan.copies]
    assert sorted(copied) == list(range(len(nodes)))
    for rank, plan in enumerate(plans):
        assert (rank, plan.alone) in plans[plan.keeper].copies
        assert nodes[plan.keeper] != nodes[rank]
    everything = {each for own in held for each in own}
    for lost in {*nodes}:
        left = [plan for plan, node in zip(plans, nodes, strict=True) if node != lost]
        files = [file for plan in left for file in (plan.common, plan.alone)]
        files += [file for plan in left for _, file in plan.copies]
        assert {each for file in files for each in file.starts} == everything


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_what_all_nodes_have_is_not_copied(sizes: list[int]) -> None:
    nodes = [str(node) for node, size in enumerate(sizes) for _ in range(size)]
    held = [own[:1] for own in sharded(len(nodes))]
    for rank in range(len(nodes)):
        plan = plan_commit(held, nodes, rank)
        assert not plan.is_copied
        assert not plan.copies
        assert not plan.alone.starts


def test_one_node_copies_nothing() -> None:
    plan = plan_commit(sharded(3), ["0"] * 3, 1)
    assert not plan.is_copied
    assert not plan.copies
    assert {each.name for each in plan.common.starts} >= {"cut", "of 1"}
