"""Pipelines of models as they are."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytest.importorskip("torch")

from support import whole_pipelines  # noqa: E402

pytest.importorskip("transformers")


@cache
def found() -> dict[str, list[Any]]:
    """All families, in one world. Ranks are forked: what they import is there."""
    for family in whole_pipelines.FAMILIES:
        whole_pipelines.model_of(family)
    bodies = {
        family: partial(whole_pipelines.trained, family=family)
        for family in whole_pipelines.FAMILIES
    }
    return run_in_one_world(2, bodies, 110.0)


@pytest.mark.parametrize("family", whole_pipelines.FAMILIES)
def test_a_model_of_transformers_trains_as_in_one_process(family: str) -> None:
    for result in found()[family]:
        assert not isinstance(result, Raised), result.error.args[0]
        for schedule, apart in result.items():
            assert apart < 1e-9, schedule
