"""What the tests of jobs on several hosts have in common."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.launcher import Launcher
from support.sites import CONF, Site, clustered, site


@pytest.fixture
def three(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Three hosts of which two are enough; the parameter is etcd's version and size."""
    etcd = partial(clustered, *request.param)
    with Launcher(tmp_path) as launcher, site(launcher, etcd, "2:3", 3, CONF) as found:
        yield found
