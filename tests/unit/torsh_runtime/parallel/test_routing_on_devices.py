"""Routes that are computed on a device are those of the processor."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torsh_runtime.parallel.dispatch import device, products, routing  # noqa: E402
from torsh_runtime.parallel.dispatch.products import GroupedLinear  # noqa: E402
from torsh_runtime.parallel.dispatch.ranks import Ranks  # noqa: E402
from torsh_runtime.parallel.dispatch.routing import (  # noqa: E402
    Assignment,
    Exchange,
    Groups,
    Limit,
    Remark,
)

pytestmark = pytest.mark.torch
CUTS = (0, 2, 5)
EXPERTS = CUTS[-1]


class Group:
    """Two ranks, of which the other says what it is made with."""

    world_size, rank, ranks = 2, 1, (4, 7)

    def __init__(self, other: Any) -> None:
        self.other = other

    def all_gather_into_tensor(self, everyone: Any, own: Any) -> None:
        everyone[0], everyone[1] = torch.from_numpy(self.other), own


def plan(
    chosen: np.ndarray[Any, Any], other: Any, limit: Limit | None, remark: Remark | None = None
) -> tuple[Assignment, Exchange]:
    ranks: Any = Ranks("ep", Group(np.array([*other, remark.number if remark else 0])), Any)  # type: ignore[arg-type]
    share = ranks.share_of(len(chosen))
    return device.planned(ranks, CUTS, torch.from_numpy(chosen), share, limit, remark)


def tensors(limit: Limit | None) -> Limit | None:
    return limit and Limit(torch.from_numpy(limit.before), torch.tensor(limit.most))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("lowest", [0, -2])
@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_plans_are_the_same(tokens: int, lowest: int, limited: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    chosen = random.integers(lowest, EXPERTS + (lowest < 0), (tokens, 3))
    other = random.integers(0, 9, EXPERTS)
    limit = Limit(random.integers(0, 9, EXPERTS), 12) if limited else None
    before = {} if limit is None else {"before": limit.before, "limit": limit.most}
    wanted = Assignment.of(chosen, EXPERTS, **before)
    assignment, exchange = plan(chosen, other, tensors(limit))
    for name in ("places", "order", "counts"):
        assert getattr(assignment, name).tolist() == getattr(wanted, name).tolist(), name
    assert assignment.has_gaps == bool((wanted.places < 0).any())
    there = Exchange.of(np.stack([other, wanted.counts]), CUTS, 1)
    assert (exchange.sent, exchange.received) == (there.sent, there.received)
    assert exchange.order.tolist() == there.order.tolist()
    assert exchange.groups.counts == there.groups.counts
    assert exchange.groups.ends.tolist() == np.cumsum(there.groups.counts).tolist()
    assert exchange.groups.ends.dtype is torch.int32


def test_of_equal_scores_the_first_expert_is_chosen() -> None:
    scores = np.array([[0.5, 0.5, 0.1, 0.5], [0.0, 0.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]])
    found = device.highest(torch.from_numpy(scores), 2)
    assert found.tolist() == routing.highest(scores, 2).tolist()


def test_numbers_that_are_no_experts_are_not_counted() -> None:
    chosen = np.array([[0, 4, -1], [4, 5, 1]])
    found = device.counted(torch.from_numpy(chosen), 5)
    assert found.tolist() == routing.counted(chosen, 5).tolist() == [1, 1, 0, 0, 2]


def test_ranks_that_say_something_else_are_told() -> None:
    called: list[str] = []
    chosen = np.zeros((2, 1), np.int64)
    plan(chosen, [0] * EXPERTS, None, Remark(3, lambda: called.append("equal")))
    assert called == []
    plan(chosen, [0] * EXPERTS, None, Remark(0, lambda: called.append("cannot go on")))
    ranks: Any = Ranks("ep", Group(np.array([0] * EXPERTS + [4])), Any)  # type: ignore[arg-type]
    remark = Remark(3, lambda: called.append("other"))
    device.planned(ranks, CUTS, torch.from_numpy(chosen), ranks.share_of(2), None, remark)
    assert called == ["cannot go on", "other"]


@pytest.mark.parametrize("tokens", [1, 2, 61])
def test_other_experts_have_another_note(tokens: int) -> None:
    random = np.random.default_rng(0)
    chosen = random.integers(0, 5, (tokens, 2))
    notes = {int(device._mixed(torch.from_numpy(chosen)))}
    for place in np.ndindex(chosen.shape):
        other = chosen.copy()
        other[place] = (other[place] + 1) % 5
        notes.add(int(device._mixed(torch.from_numpy(other))))
    assert len(notes) == 1 + chosen.size


@pytest.mark.parametrize("counts", [[3, 0, 5], [0, 0, 8], [8, 0, 0], [0, 0, 0]])
def test_grouped_products_are_those_of_one_expert_after_the_other(counts: list[int]) -> None:
    torch.manual_seed(0)
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    rows, weight, gradient = (
        torch.randn(shape).bfloat16()
        for shape in ((sum(counts), 16), (3, 24, 16), (sum(counts), 24))
    )
    found = []
    for has in (True, False):
        with mock.patch.object(products, "has_grouped_product", lambda _, has=has: has):
            linear = GroupedLinear(Groups(counts, ends))
            assert bool(products.grouped_product(rows, weight, linear.groups)) == (
                has and sum(counts) > 0
            )
            result, saved = linear.forward(rows, weight)
            found.append([result, *linear.backward(gradient, *saved)])
    for each, expected in zip(*found, strict=True):
        assert each.shape == expected.shape
        torch.testing.assert_close(each, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("rows", "weight", "dtype"),
    [
        ((8, 16), (3, 24, 16), "float32"),
        ((8, 12), (3, 24, 12), "bfloat16"),
        ((8, 16), (3, 20, 16), "bfloat16"),
    ],
)
def test_operands_that_torchs_product_does_not_take_go_one_after_the_other(
    rows: Any, weight: Any, dtype: str
) -> None:
    kind, groups = getattr(torch, dtype), Groups([8, 0, 0], torch.tensor([8, 8, 8]))
    with mock.patch.object(products, "has_grouped_product", return_value=True):
        given = torch.ones(rows, dtype=kind), torch.ones(weight, dtype=kind)
        assert products.grouped_product(*given, groups) is None
        fit = torch.ones(8, 16).bfloat16(), torch.ones(3, 24, 16).bfloat16()
        assert products.grouped_product(*fit, groups) is not None
        assert products.grouped_product(fit[0][:, :8], fit[1][..., :8], groups) is None
        assert products.grouped_product(*fit, Groups([8, 0, 0])) is None


def test_torchs_shape_function_takes_grouped_products() -> None:
    def meta(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    ends = torch.empty(3, dtype=torch.int32, device="meta")
    linear = GroupedLinear(Groups([3, 0, 5], ends))
    with mock.patch.object(products, "has_grouped_product", return_value=True):
        result, saved = linear.forward(meta(8, 16), meta(3, 24, 16))
        assert result.shape == (8, 24)
        gradients = linear.backward(meta(8, 24), *saved)
    assert [each.shape for each in gradients if each is not None] == [(8, 16), (3, 24, 16)]


def test_processors_and_older_gpus_have_no_grouped_product(monkeypatch: Any) -> None:
    assert not products.has_grouped_product(torch.device("cpu"))
    for capability, has in ((8, 0), False), ((9, 0), True), ((10, 0), True), ((12, 0), False):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, of=capability: of)
        assert products.has_grouped_product(torch.device("cuda")) is has
