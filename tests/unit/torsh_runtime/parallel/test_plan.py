"""Which gradients lie in which bucket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.parallel.ddp.plan import Gradient, limit_of, spans

KINDS = [("float32", "cpu", 0), ("float64", "cpu", 0), ("float64", "cpu", 1)]
gradients = st.lists(
    st.builds(
        lambda elements, kind: Gradient(elements, 4 if kind == KINDS[0] else 8, kind),
        st.integers(0, 50),
        st.sampled_from(KINDS),
    ),
    min_size=1,
    max_size=12,
)


@given(gradients, st.integers(1, 400), st.randoms())
def test_each_gradient_has_one_place(found: list[Gradient], limit: int, random: object) -> None:
    order = list(range(len(found)))
    random.shuffle(order)  # type: ignore[attr-defined]
    laid = spans(found, order, limit)
    members = [number for span in laid for number in span.members]
    assert sorted(members) == sorted(order)
    for kind in KINDS:
        own = [span for span in laid if span.kind == kind]
        assert [span.start for span in own] == [0, *(span.end for span in own)][: len(own)]
        assert [n for s in own for n in s.members] == [n for n in order if found[n].kind == kind]
    for span in laid:
        sizes = [found[number].elements for number in span.members]
        assert span.end - span.start == sum(sizes)
        assert len(sizes) == 1 or sum(sizes) * found[span.members[0]].itemsize <= limit


def test_buckets_are_small_only_where_communication_overlaps() -> None:
    assert limit_of(25, 100 << 20, overlaps=False) == 25 << 20
    assert limit_of(25, 160 << 20, overlaps=True) == 10 << 20
    assert limit_of(25, 1 << 20, overlaps=True) == 1 << 20
    assert limit_of(25, 16 << 30, overlaps=True) == 25 << 20
