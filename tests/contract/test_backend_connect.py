"""Making backends: where they are, where they are not, and whom they wait for."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from torsh_runtime.backends.base import BackendType, ReduceOp
from torsh_runtime.backends.library.gloo import GlooBackend
from torsh_runtime.backends.library.mpi import MpiBackend
from torsh_runtime.backends.nccl.late import LateNcclBackend
from torsh_runtime.backends.registry import is_available
from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.errors import BackendUnavailable, CommTimeout, ConfigError
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore


@pytest.fixture
def store() -> Iterator[StoreClient]:
    hosted = HostedStore.start(f"unix:@torsh-test-{secrets.token_hex(8)}", b"")
    with StoreClient.connect(hosted.endpoint, b"", 30) as client:
        yield client
    hosted.close()


@pytest.mark.parametrize("kind", BackendType)
def test_asking_whether_a_backend_is_there_never_raises(kind: BackendType) -> None:
    assert is_available(kind) in (True, False)


@pytest.mark.parametrize("kind", [BackendType.MPI, BackendType.GLOO, BackendType.NCCL])
def test_a_library_that_cannot_even_be_looked_for_is_not_there(
    kind: BackendType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("mpi4py", "torch", "nccl"):
        monkeypatch.setitem(sys.modules, package, None)
    assert not is_available(kind)


@pytest.mark.parametrize(
    ("backend", "package", "command"),
    [
        (MpiBackend, "mpi4py.MPI", "pip install mpi4py"),
        (GlooBackend, "torch.distributed", "pip install torch"),
        (LateNcclBackend, "nccl.core", r"pip install '\.\[cuda12\]'"),
    ],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    backend: Any, package: str, command: str, store: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendUnavailable, match=command):
        backend.connect(store, 0, 1, 5)


def test_single_is_for_one_rank(store: StoreClient) -> None:
    assert SingleBackend.connect(store, 0, 1, 5).world_size == 1
    with pytest.raises(ConfigError, match="2"):
        SingleBackend.connect(store, 0, 2, 5)


@pytest.mark.torch
@pytest.mark.skipif(not find_spec("torch"), reason="needs torch")
def test_gloo_names_the_ranks_that_did_not_come(store: StoreClient) -> None:
    with pytest.raises(CommTimeout) as caught:
        GlooBackend.connect(store, 1, 3, 0.3)
    assert caught.value.missing == (0, 2)


@pytest.mark.torch
@pytest.mark.skipif(not find_spec("torch"), reason="needs torch")
def test_gloo_names_an_interface_that_is_not_there(
    store: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSH_SOCKET_IFNAME", "wire7")
    with pytest.raises(ConfigError, match="wire7"):
        GlooBackend.connect(store, 0, 1, 5)


@pytest.mark.torch
@pytest.mark.skipif(not find_spec("torch"), reason="needs torch")
def test_gloo_takes_the_first_interface_that_exists(
    store: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSH_SOCKET_IFNAME", "wire7,lo")
    backend = GlooBackend.connect(store, 0, 1, 30)
    array = np.ones(3)
    backend.all_reduce(array, ReduceOp.SUM, 30)
    backend.close()
    assert array.tolist() == [1, 1, 1]
    assert not [thread for thread in threading.enumerate() if thread.name == "torsh-gloo"]
