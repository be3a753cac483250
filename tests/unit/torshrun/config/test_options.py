"""The table: complete, without contradictions, and in step with LaunchConfig and the page."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from support.option_reference import PAGE, renewed

from torshrun.config.job import LaunchConfig, OutputConfig
from torshrun.config.options import OPTIONS
from torshrun.config.request import gather
from torshrun.config.resolve import resolve

TORCHRUNS = """
nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts
monitor-interval start-method event-log-handler role m module no-python run-path log-dir r redirects
t tee local-ranks-filter duplicate-stdout-filters duplicate-stderr-filters node-rank master-addr
master-port local-addr logs-specs numa-binding signals-to-handle shutdown-timeout
virtual-local-rank
"""


def test_torchruns_options_are_all_there() -> None:
    spellings = {spelling.lstrip("-") for option in OPTIONS for spelling in option.spellings}
    assert set(TORCHRUNS.split()) <= spellings


def test_no_name_or_variable_has_two_meanings() -> None:
    spellings = Counter(spelling for option in OPTIONS for spelling in option.spellings)
    variables = Counter(variable for option in OPTIONS for variable in option.environment)
    for counted in (spellings, variables):
        assert set(counted.values()) == {1}


def test_every_default_is_a_value() -> None:
    for option in OPTIONS:
        assert option.default is None or option.kind.parse(option.default) is not None


@pytest.mark.parametrize("kind", [LaunchConfig, OutputConfig])
def test_no_field_keeps_its_default_because_nobody_knows_it(
    kind: type[LaunchConfig] | type[OutputConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {field.name for field in dataclasses.fields(kind)}
    made: list[dict[str, object]] = []
    monkeypatch.setattr(kind, "__init__", lambda _, **given: made.append(given))
    resolve(gather({}, __file__, (), {}), {})
    assert made[0].keys() == names


def test_the_page_lists_them() -> None:
    page = PAGE.read_text()
    assert page == renewed(page), "run: python tests/support/option_reference.py"
