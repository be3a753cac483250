"""The rendered examples are what torshctl writes today, as is the reference of keys."""

from __future__ import annotations

import pytest
from support.key_reference import PAGE, renewed
from support.rendered_examples import CONFIGS, NAMES, example


@pytest.mark.parametrize("target", NAMES)
def test_the_example_is_up_to_date(target: str) -> None:
    again = "run: python tests/support/rendered_examples.py"
    assert (CONFIGS / NAMES[target]).read_text() == example(target), again


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == renewed(page), "run: python tests/support/key_reference.py"
