"""The fakes of nccl4py and cuda-core have the names and the signatures of the real ones.

That takes the packages and no GPU; without them it is skipped.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from support import fake_cuda, fake_driver, fake_nccl

CLASSES = [
    ("nccl.core", fake_nccl, "Communicator"),
    ("nccl.core", fake_nccl, "UniqueId"),
    ("nccl.core", fake_nccl, "CustomRedOp"),
    ("nccl.core", fake_nccl, "RegisteredBufferHandle"),
    ("cuda.core", fake_cuda, "Device"),
    ("cuda.core", fake_cuda, "Stream"),
    ("cuda.core", fake_cuda, "Event"),
]
FUNCTIONS = (
    *("group", "group_start", "group_end", "get_unique_id"),
    *("get_error_string", "get_version"),
)


@pytest.mark.parametrize(("module", "fake", "name"), CLASSES, ids=[name for *_, name in CLASSES])
def test_methods(module: str, fake: Any, name: str) -> None:
    real, ours = getattr(pytest.importorskip(module), name), getattr(fake, name)
    for method in (method for method in vars(ours) if not method.startswith("_")):
        assert hasattr(real, method), method
        if callable(getattr(ours, method)):
            assert _parameters(getattr(ours, method)) == _parameters(getattr(real, method)), method


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    real = getattr(pytest.importorskip("nccl.core"), name)
    assert _parameters(getattr(fake_nccl, name)) == _parameters(real)


def test_constants() -> None:
    real = pytest.importorskip("nccl.core")
    for name in ("NcclDataType", "NcclRedOp"):
        for member in getattr(fake_nccl, name):
            assert int(getattr(getattr(real, name), member.name)) == member.value
            assert hasattr(real, member.name)
    assert issubclass(real.NcclInvalid, Exception)


def test_the_drivers_captures() -> None:
    real = pytest.importorskip("cuda.bindings.driver")
    for name in ("CUstreamCaptureMode", "CUstreamCaptureStatus"):
        for member in getattr(fake_driver, name):
            assert int(getattr(getattr(real, name), member.name)) == member.value
    for name in ("cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"):
        assert callable(getattr(real, name))


def _parameters(function: Any) -> list[tuple[Any, ...]]:
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]
