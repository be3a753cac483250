"""What tr.elastic.join() refuses in programs of torch.distributed, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import distribute_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import torsh_runtime as tr
from torsh_runtime.elastic import joining
from torsh_runtime.integrations.torch import replicas

Optimizer = torch.optim.Optimizer


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(joining, "_joined", False)
    monkeypatch.setattr(DistributedDataParallel, "__init__", DistributedDataParallel.__init__)
    helper = DistributedDataParallel._ddp_init_helper
    monkeypatch.setattr(DistributedDataParallel, "_ddp_init_helper", helper)
    replicas.watch.cache_clear()
    replicas.watch()
    dist.init_process_group("torsh", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made() -> tuple[DistributedDataParallel, Optimizer]:
    model = DistributedDataParallel(nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def check_refused(words: str, **parts: Any) -> None:
    with pytest.raises(tr.ConfigError) as caught:
        tr.elastic.join(**parts)
    assert words in str(caught.value)


HOOKED: dict[str, Callable[[DistributedDataParallel], Any]] = {
    "python's": lambda model: model.register_comm_hook(None, default_hooks.allreduce_hook),
    "built in": lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
    "of buffers": lambda model: model._register_buffer_comm_hook(None, lambda *_: None),
}


@pytest.mark.parametrize("hook", HOOKED)
def test_hooks_are_refused(hook: str) -> None:
    model, optimizer = made()
    plain, its_optimizer = made()
    HOOKED[hook](model)
    check_refused("through a communication hook", model=model, optimizer=optimizer)
    check_refused("through a communication hook", model=plain, optimizer=its_optimizer)


@pytest.mark.parametrize("hook", HOOKED)
def test_hooks_are_refused_afterwards(hook: str) -> None:
    model, optimizer = made()
    tr.elastic.join(model=model, optimizer=optimizer)
    with pytest.raises(tr.ConfigError, match=r"that tr.elastic.join\(\) protects"):
        HOOKED[hook](model)


def test_torchs_own_join_is_refused() -> None:
    model, optimizer = made()
    tr.elastic.join(model=model, optimizer=optimizer)
    with pytest.raises(tr.ConfigError, match=r"join_hook\(\) of a DistributedDataParallel"):
        model.join()


def test_a_model_within_torchs_join_is_refused() -> None:
    model, optimizer = made()
    with model.join():
        check_refused("within join() of torch's", model=model, optimizer=optimizer)


def test_further_groups_are_refused() -> None:
    model, optimizer = made()
    group = dist.new_group([0])
    check_refused("groups beside the default one", model=model, optimizer=optimizer)
    dist.destroy_process_group(group)
    tr.elastic.join(model=model, optimizer=optimizer)
    dist.group.WORLD.is_alone = True  # as where an agent replaces workers
    with pytest.raises(tr.ConfigError, match="make no groups"):
        dist.new_group([0])


def test_replicas_whose_values_a_replacement_would_lack_are_refused() -> None:
    model, optimizer = made()
    other, _ = made()
    words = "was not given the DistributedDataParallel of a Linear"
    check_refused(words, model=model, optimizer=optimizer)
    other.module.loop = [other]  # gone, but for a cycle
    del other
    assert tr.elastic.join(model=model.module, optimizer=optimizer).number == 0


CALLS: dict[str, Callable[[Any], Any]] = {
    "get": lambda store: store.get("key"),
    "set": lambda store: store.set("key", "value"),
    "add": lambda store: store.add("key", 1),
    "wait": lambda store: store.wait(["key"]),
    "check": lambda store: store.check(["key"]),
    "compare_set": lambda store: store.compare_set("key", "", "value"),
    "delete_key": lambda store: store.delete_key("key"),
    "num_keys": lambda store: store.num_keys(),
    "multi_get": lambda store: store.multi_get(["key"]),
}


@pytest.mark.parametrize("call", CALLS)
def test_torchs_store_refuses_calls_of_a_replacement(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setenv("TORSH_REPLACEMENT", "1")
    dist.destroy_process_group()
    dist.init_process_group("torsh")
    with pytest.raises(tr.ConfigError, match="cannot reach the store"):
        CALLS[call](dist.distributed_c10d._get_default_store())


def test_optimizers_that_share_their_state_are_refused() -> None:
    model, _ = made()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    words = "cannot recover 'optimizer': each rank has a part of its state"
    check_refused(words, model=model, optimizer=optimizer)


def test_dtensors_of_the_programs_own_are_refused() -> None:
    model = distribute_module(nn.Linear(3, 1), init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check_refused("parameters are DTensors", model=model, optimizer=optimizer)


def test_one_rank_may_join_with_what_it_has_sharded() -> None:
    model: Any = fully_shard(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = tr.elastic.join(model=model, optimizer=optimizer)
    for step in job.steps(2):
        with step:
            model(torch.ones(2, 3)).sum().backward()
            step.commit()
    assert job.number == 2


def test_other_backends_are_refused() -> None:
    model, optimizer = made()
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    check_refused("is of backend 'fake'", model=model, optimizer=optimizer)


def test_ranks_that_torshrun_has_not_given_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = made()
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_refused("leave rank and world_size out", model=model, optimizer=optimizer)


def test_models_with_equal_names_in_one_optimizer_are_refused() -> None:
    one, optimizer = made()
    other, _ = made()
    optimizer.add_param_group({"params": [*other.parameters()]})
    words = "two of which have the name 'module.weight'"
    check_refused(words, one=one, other=other, optimizer=optimizer)
    both = nn.ModuleList([one, other])
    assert tr.elastic.join(both=both, optimizer=optimizer).number == 0
