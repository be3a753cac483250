"""Optional frameworks: whether one is installed, and new enough."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from torsh_runtime.errors import BackendUnavailable
from torsh_runtime.integrations.requirement import Requirement

TRIED = ("1.5", "2.0")


def refusal(distribution: str, least: str, *modules: str) -> str:
    with pytest.raises(BackendUnavailable) as caught:
        Requirement(distribution, "ray", least, TRIED, modules).check()
    assert "pip install '.[ray]'" in caught.value.remedy
    assert "tried with 1.5 and 2.0" in caught.value.remedy
    return caught.value.remedy


def test_what_is_wrong_is_said_with_the_way_out() -> None:
    assert "no-such-framework is not installed" in refusal("no-such-framework", "1")
    assert f"numpy {np.__version__} is too old" in refusal("numpy", "1000.1")
    assert "does not load (No module named 'no_such" in refusal("numpy", "1.0", "no_such_module")


def test_versions_are_compared_by_their_numbers() -> None:
    major, minor = np.__version__.split(".")[:2]
    for least in ("1.9", major, f"{major}.{minor}", f"0{major}.0"):
        Requirement("numpy", "ray", least, TRIED, ("numpy",)).check()


@pytest.mark.parametrize(
    ("framework", "module", "extra"), [("ray", "ray", "ray"), ("distributed", "dask", "dask")]
)
def test_an_integration_without_its_framework(framework: str, module: str, extra: str) -> None:
    if find_spec(framework) is not None:
        pytest.skip(f"{framework} is installed")
    with pytest.raises(BackendUnavailable, match=rf"pip install '\.\[{extra}\]'"):
        __import__(f"torsh_runtime.integrations.{module}")
