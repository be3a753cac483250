"""What tensors on devices that no backend serves are told; the devices are stand-ins."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.ports import free_address

import torsh_runtime as tr
from torsh_runtime.backends.nccl.device import framework_of
from torsh_runtime.comm.choosing import use_device

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def elsewhere(kind: str) -> object:
    """A tensor that says it is on a device of this kind."""

    class Tensor(torch.Tensor):  # type: ignore[name-defined, misc]
        device = SimpleNamespace(type=kind, index=0)
        is_cuda = kind == "cuda"

    return torch.ones(3).as_subclass(Tensor)


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("xpu", r"'xpu'.*serves it: use torch\.distributed's own.*init_process_group\('xccl'\)"),
        ("mps", r"'mps'.*serves it: pass a copy on the CPU"),
        ("meta", r"'meta'.*has no data: .*to_empty"),
        ("cuda", "'cuda'.*backend 'nccl' for CUDA tensors"),
    ],
)
def test_a_group_of_processors_says_what_serves_a_device(kind: str, words: str) -> None:
    tr.init_process_group("native", free_address(), world_size=1, rank=0)
    try:
        with pytest.raises(TypeError, match=words):
            tr.all_reduce(elsewhere(kind))
    finally:
        tr.destroy_process_group()


def test_nccl_names_the_device_that_it_does_not_take() -> None:
    with pytest.raises(TypeError, match=r"no .*Tensor on xpu: .*'xccl'"):
        framework_of(elsewhere("xpu"))
    with pytest.raises(TypeError, match="takes cupy arrays and torch CUDA tensors, not torch"):
        framework_of(torch.ones(2))
    with pytest.raises(TypeError, match="not numpy"):
        framework_of(np.ones(2))


def test_amd_gpus_are_sent_to_torchs_own_groups(rocm: None) -> None:
    with pytest.raises(tr.BackendUnavailable, match=r"AMD's GPUs.*init_process_group\('nccl'\)"):
        use_device(0, tr.BackendType.NCCL)
    tr.init_process_group("native", free_address(), world_size=1, rank=0)
    try:
        with pytest.raises(TypeError, match=r"torch\.distributed's own.*'nccl'"):
            tr.all_reduce(elsewhere("cuda"))
    finally:
        tr.destroy_process_group()


def test_without_torch_nothing_is_amds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(tr.BackendUnavailable, match="no NVIDIA driver"):
        use_device(0, tr.BackendType.NCCL)
