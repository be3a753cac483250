"""Which gradients lie in which bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.parallel.ddp.plan import Gradient, Kind, Limits, Span, limits_of, spans

KINDS = [
    ("float32", "cpu", 0),
    ("float64", "cpu", 0),
    ("float64", "cpu", 1),
    ("float32", "cuda:0", 0),
]
gradients = st.lists(
    st.builds(
        lambda elements, kind: Gradient(elements, 4 if kind[0] == "float32" else 8, kind),
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
    laid = spans(found, order, Limits(limit, limit, limit))
    members = [number for span in laid for number in span.members]
    assert sorted(members) == sorted(order)
    for kind in KINDS:
        own = [span for span in laid if span.kind == kind]
        assert [span.start for span in own] == [0, *(span.end for span in own)][: len(own)]
        assert [n for s in own for n in s.members] == [n for n in order if found[n].kind == kind]
    for span in laid:
        sizes = [found[number].elements for number in span.members]
        assert span.end - span.start == sum(sizes)
        before, itemsize = sum(sizes[:-1]), found[span.members[0]].itemsize
        if span.kind[1] == "cpu":
            assert sum(sizes) * itemsize <= limit or before * itemsize * 4 < limit
        else:
            assert before * itemsize < limit
            assert sum(sizes) * itemsize >= limit or span == own_last(laid, span.kind)


def own_last(laid: list[Span], kind: Kind) -> Span:
    """The last bucket of a kind."""
    return [span for span in laid if span.kind == kind][-1]


def test_buckets_are_small_only_where_communication_overlaps() -> None:
    assert limits_of(25, False, 100 << 20, overlaps=False).on_cpu == 25 << 20
    assert limits_of(25, False, 160 << 20, overlaps=True).on_cpu == 10 << 20
    assert limits_of(25, False, 1 << 20, overlaps=True).on_cpu == 1 << 20
    assert limits_of(25, False, 16 << 30, overlaps=True).on_cpu == 25 << 20
    assert limits_of(25, False, 160 << 20, overlaps=True).on_gpu == 25 << 20


def _gpt2_xl() -> list[int]:
    width, layers = 1600, 48
    attention = [width, width, 3 * width**2, 3 * width, width**2, width]
    block = [*attention, width, width, 4 * width**2, 4 * width, 4 * width**2, width]
    return [50257 * width, 1024 * width, *block * layers, width, width]


def _llama_7b() -> list[int]:
    width, layers = 4096, 32
    block = [*[width**2] * 4, *[width * 11008] * 3, width, width]
    return [32000 * width, *block * layers, width, width * 32000]


def _linear_layers() -> list[int]:
    width = 2048
    return [*[width**2, width] * 6, 10 * width, 10]


@pytest.mark.parametrize(
    ("sizes", "device", "is_given", "count"),
    [
        (_gpt2_xl(), "cpu", False, 194),
        (_gpt2_xl(), "cuda:0", False, 145),
        (_gpt2_xl(), "cuda:0", True, 145),
        (_llama_7b(), "cpu", False, 226),
        (_llama_7b(), "cuda:0", False, 226),
        (_linear_layers(), "cpu", False, 6),
        (_linear_layers(), "cuda:0", False, 4),
    ],
)
def test_how_many_buckets_well_known_models_have(
    sizes: list[int], device: str, is_given: bool, count: int
) -> None:
    found = [Gradient(elements, 4, ("float32", device, 0)) for elements in sizes]
    limits = limits_of(25.0, is_given, sum(sizes) * 4, overlaps=True)
    laid = spans(found, [*reversed(range(len(sizes)))], limits)
    assert len(laid) == count
    assert min(4 * (span.end - span.start) for span in laid[:-1]) >= 1 << 20
