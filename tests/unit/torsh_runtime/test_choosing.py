"""Names of backends and devices, and what the launcher has said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import torsh_runtime as tr
from torsh_runtime.backends.base import BackendType, ByDevice
from torsh_runtime.comm.choosing import backend_type, by_device, chosen_type, use_device


def test_backends_by_name() -> None:
    assert backend_type("native") is backend_type("cpu:native") is BackendType.NATIVE
    assert backend_type("cuda:nccl") is BackendType.NCCL
    with pytest.raises(tr.ConfigError, match="serves cpu, not 'cuda'"):
        backend_type("cuda:native")
    with pytest.raises(tr.ConfigError, match="serves cuda, not 'xpu'"):
        backend_type("xpu:nccl")
    with pytest.raises(tr.BackendUnavailable):
        backend_type("cpu:")


def test_a_backend_for_each_device() -> None:
    both = ByDevice(BackendType.GLOO, BackendType.NCCL)
    for name in ("cpu:gloo,cuda:nccl", "cuda:nccl, cpu:gloo", str(both)):
        assert backend_type(name) == both
    assert by_device(both) == {"cpu": "gloo", "cuda": "nccl"}


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("cpu:native,cpu:gloo", tr.ConfigError, "a device of its own"),
        ("cpu:native,cuda:nccl,cpu:native", tr.ConfigError, "a device of its own"),
        ("native,nccl", tr.ConfigError, "stands behind a device"),
        ("cpu:native,nccl", tr.ConfigError, "stands behind a device"),
        ("cpu:native,xpu:nccl", tr.ConfigError, "serves cuda, not 'xpu'"),
        ("cuda:native,cpu:nccl", tr.ConfigError, "serves cpu, not 'cuda'"),
        ("cpu:native,xpu:ucc", tr.BackendUnavailable, "'xpu:ucc'.*Known backends"),
        ("cpu:native,", tr.BackendUnavailable, "Known backends"),
    ],
)
def test_backends_that_make_no_group_together(name: str, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        backend_type(name)
    assert not tr.is_backend_available(name)


def test_what_is_available() -> None:
    assert tr.is_backend_available("native")
    assert tr.is_backend_available("CPU:Single")
    assert tr.is_backend_available("cpu:native,cuda:nccl") == tr.is_nccl_available()
    for name in ("ucc", "cuda:native", ""):
        assert not tr.is_backend_available(name)
    assert not tr.is_ucc_available()
    assert not tr.is_xccl_available()


def test_backends_for_devices() -> None:
    assert tr.get_default_backend_for_device("cpu") == "native"
    assert tr.get_default_backend_for_device("cuda:3") == "nccl"
    assert tr.get_default_backend_for_device(SimpleNamespace(type="cuda", index=1)) == "nccl"
    with pytest.raises(ValueError, match=r"no backend for 'xpu'.*init_process_group.'xccl'."):
        tr.get_default_backend_for_device("xpu")


def test_devices_of_groups() -> None:
    cuda = SimpleNamespace(type="cuda", index=0)
    assert chosen_type(None, None) is chosen_type(None, "cpu") is None
    assert chosen_type("gloo", 0) is BackendType.GLOO
    both = backend_type("cpu:native,cuda:nccl")
    assert chosen_type("cpu:native,cuda:nccl", 0) == both
    assert chosen_type(None, 0) == chosen_type(None, cuda) == both
    assert chosen_type("nccl", 0) is BackendType.NCCL
    use_device("cpu", BackendType.NATIVE)
    use_device("cpu", both)
    use_device(None, BackendType.NCCL)
    for wrong, kind, words in (
        (cuda, BackendType.NATIVE, "is for backend 'nccl'"),
        (0, BackendType.GLOO, "is for backend 'nccl'"),
        ("cpu", BackendType.NCCL, "no NVIDIA GPU"),
        ("xpu", both, "no NVIDIA GPU.*xccl"),
        ("mps", both, "no NVIDIA GPU.*copy on the CPU"),
        (SimpleNamespace(type="cuda", index=None), BackendType.NCCL, "no NVIDIA GPU"),
    ):
        with pytest.raises(tr.ConfigError, match=words):
            use_device(wrong, kind)


def test_which_reductions_take_complex_numbers() -> None:
    assert {op.name for op in tr.ReduceOp if tr.supports_complex(op)} == {"SUM", "AVG", "PRODUCT"}


def test_factors_are_for_one_reduction() -> None:
    assert tr.ReduceOp.PREMUL_SUM(2.0) == tr.premul_sum(2.0)
    with pytest.raises(TypeError, match=r"ReduceOp\.SUM takes no factor"):
        tr.ReduceOp.SUM(2.0)


def test_what_the_launcher_has_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert not tr.is_torchelastic_launched()
    assert tr.get_node_local_rank(3) == 3
    with pytest.raises(tr.ConfigError, match="fallback_rank"):
        tr.get_node_local_rank()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert tr.is_torchelastic_launched()
    assert tr.get_node_local_rank(3) == 2
    monkeypatch.setenv("LOCAL_RANK", "two")
    with pytest.raises(tr.ConfigError, match="'two'"):
        tr.get_node_local_rank()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"store": object()}, "get_store"),
        ({"pg_options": object()}, "pg_options"),
        ({"backend": "native", "device_id": 0}, "device_id"),
    ],
)
def test_arguments_of_init_process_group_that_mean_nothing_here(
    options: dict[str, object], words: str
) -> None:
    with pytest.raises(tr.ConfigError, match=words):
        tr.init_process_group(init_method="tcp://127.0.0.1:1", world_size=1, rank=0, **options)  # type: ignore[arg-type]
    assert tr.group.WORLD is None


def test_the_default_group_by_torchs_names() -> None:
    group = tr.init_process_group("cpu:native", "tcp://127.0.0.1:1", 10.0, 1, 0, group_name="any")
    assert group is tr.group.WORLD
    assert tr.get_backend_config() == "cpu:native"
    assert tr.get_pg_count() == 1
    tr.destroy_process_group()
    assert tr.get_pg_count() == 0
    assert tr.GroupMember.WORLD is None
