"""Where dimensions are cut, and which modules a plan means."""

from __future__ import annotations

import pytest

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.tensor.cuts import cuts, sharded, sizes
from torsh_runtime.parallel.tensor.plan import Column, Row, matched

NAMES = ["", "head", "blocks", "blocks.0", "blocks.0.up", "blocks.0.down", "blocks.1.up"]


@pytest.mark.parametrize("size", [4, 7, 12])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parts_are_all_there_is_and_differ_by_one_unit(size: int, ranks: int) -> None:
    for unit in (1, 5):
        found = sizes(sharded(size * unit, ranks, unit))
        assert sum(found) == size * unit
        assert max(found) - min(found) in (0, unit)


def test_sections_are_each_cut() -> None:
    shard = sharded(10, 2, 2, (6, 4), dim=1)
    assert shard.dim == 1
    assert shard.parts == (((0, 2), (6, 8)), ((2, 6), (8, 10)))
    assert sizes(shard) == (4, 6)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: cuts(7, 2, 2), "no whole number of heads of 2"),
        (lambda: cuts(3, 4), "3 features are too few for 4 ranks"),
        (lambda: cuts(6, 4, 2), "3 heads are too few for 4 ranks"),
        (lambda: sharded(8, 2, 1, (4, 3)), "are not all of 8 features"),
    ],
)
def test_what_cannot_be_cut_is_refused(call: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()  # type: ignore[operator]


def test_a_star_is_not_the_model_itself() -> None:
    assert matched(["", "0", "1"], {"*": Column()}) == {"0": Column(), "1": Column()}


def test_patterns_mean_what_is_between_dots() -> None:
    plan = {"blocks.*.up": Column(), "head": Row(), "blocks.?": Row(), "": Column()}
    assert matched(NAMES, plan) == {
        "": Column(),
        "head": Row(),
        "blocks.0": Row(),
        "blocks.0.up": Column(),
        "blocks.1.up": Column(),
    }


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"blocks.*.upp": Column()}, r"'blocks.\*.upp' in the plan matches no module.*blocks.0.up"),
        ({"*.up": Column()}, "matches no module"),
        ({"*.*.up": Column(), "blocks.0.*": Row()}, "both match 'blocks.0.up'"),
        ({"head": Column}, r"give Column\(\)"),
    ],
)
def test_patterns_that_mean_nothing_or_too_much_are_refused(plan: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        matched(NAMES, plan)  # type: ignore[arg-type]
