"""docs/torchrun-compatibility.md leaves nothing out and claims nothing without a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from torsh_runtime.contract import ALL_VARIABLES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/torchrun-compatibility.md").read_text()
OPTIONS = re.findall(
    r"\S+",
    """
--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --standalone
--max-restarts --monitor-interval --start-method --role --module --no-python --run-path
--event-log-handler --log-dir --redirects --tee --local-ranks-filter --duplicate-stdout-filters
--duplicate-stderr-filters --node-rank --master-addr --master-port --local-addr --logs-specs
--numa-binding --signals-to-handle --shutdown-timeout --virtual-local-rank
""",
)
"""torchrun's; that there are no others, test_torchrun_compat.py asks torch itself."""


class Row(NamedTuple):
    """One line of a table."""

    theirs: str
    verdict: str
    remark: str
    test: str


def rows() -> list[Row]:
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in TEXT.splitlines() if line[:1] == "|"]
    found = [Row(*(cell.strip() for cell in row)) for row in cells if len(row) == 4]
    return [row for row in found if row.test != "test" and set(row.test) != {"-"}]


def names(text: str) -> set[str]:
    return set(re.findall(r"[A-Z][A-Z_]{3,}", text))


@pytest.fixture(scope="module")
def tests() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.theirs)
def test_each_row_has_a_verdict_and_a_test(row: Row, tests: set[str]) -> None:
    assert row.verdict in ("same", "better", "different")
    assert row.remark or row.verdict == "same"
    assert row.test.strip("`") in tests


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_has_a_row(option: str) -> None:
    assert [row for row in rows() if f"`{option}`" in row.theirs]


def test_each_variable_is_explained() -> None:
    assert names(TEXT) >= ALL_VARIABLES
