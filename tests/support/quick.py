"""`--quick` chooses tests that take a few minutes together: what is run before each commit.

These are all of tests/unit and tests/architecture, and the first one of each file of tests/contract
and tests/integration, so that a new file has a part in it without a word; but for those that are
marked as slow, or as in need of a machine's networks or servers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

WHOLE = ("tests/unit/", "tests/architecture/")
IN_PART = ("tests/contract/", "tests/integration/")
LEFT_OUT = ("slow", "gpu", "netns", "ssh", "slurm", "etcd")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a choice that takes a few minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    begun: set[Path] = set()
    chosen = [item for item in items if _is_chosen(item, begun)]
    config.hook.pytest_deselected(items=[*{*items} - {*chosen}])
    items[:] = chosen


def _is_chosen(item: pytest.Item, begun: set[Path]) -> bool:
    """Whether it is; `begun` are the files of which one is already."""
    if any(item.get_closest_marker(mark) for mark in LEFT_OUT):
        return False
    if item.nodeid.startswith(WHOLE):
        return True
    is_first = item.path not in begun and item.nodeid.startswith(IN_PART)
    begun.add(item.path)
    return is_first
