"""The table: complete, without contradictions, and in step with LaunchConfig and the page."""

from __future__ import annotations

import dataclasses
from collections import Counter

from support.option_reference import PAGE, renewed

from torshrun.config import LaunchConfig, OutputConfig
from torshrun.config.options import BY_NAME, OPTIONS

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


def test_no_name_variable_or_field_has_two_meanings() -> None:
    spellings = Counter(spelling for option in OPTIONS for spelling in option.spellings)
    variables = Counter(variable for option in OPTIONS for variable in option.environment)
    fields = Counter(option.field or option.key for option in OPTIONS)
    for counted in (spellings, variables, fields):
        assert set(counted.values()) == {1}


def test_every_default_is_a_value() -> None:
    for option in OPTIONS:
        assert option.default is None or option.parse(option.default) is not None


def test_every_option_with_a_field_names_one() -> None:
    fields = {
        field.name for kind in (LaunchConfig, OutputConfig) for field in dataclasses.fields(kind)
    }
    assert {option.field for option in OPTIONS if option.field} <= fields


def test_every_field_can_be_set() -> None:
    by_others = {"target", "arguments", "environment", "kind", "min_nodes", "max_nodes"}
    by_others |= {"rendezvous"}
    by_others |= {"scratch_place", "output", "error_file"}
    fields = {
        field.name for kind in (LaunchConfig, OutputConfig) for field in dataclasses.fields(kind)
    }
    assert fields - by_others <= {option.field or option.key for option in BY_NAME.values()}


def test_the_page_lists_them() -> None:
    page = PAGE.read_text()
    assert page == renewed(page), "run: python tests/support/option_reference.py"
