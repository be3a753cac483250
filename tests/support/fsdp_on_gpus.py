"""FullyShardedDataParallel as it stores models on GPUs, on tensors of the CPU; each function is one
rank's part, and those of nn are on NCCL's fake."""

from __future__ import annotations

import copy
import gc
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from support.ddp_faults import Two, raised
from support.fsdp_training import WAYS, as_on_gpus
from torch import nn

import torsh_runtime as tr
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import torch_offload
from torsh_runtime.framework.torch import TorchFramework
from torsh_runtime.parallel.fsdp import registered_slots

LINEAR: Any = tr.ModuleTypeBasedAutoWrap(("Linear",))


def net(width: int, count: int, bias: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width, bias=bias) for _ in range(count)))


def losses(way: str, rank: int) -> list[float]:
    """Of a model whose rows all ranks have equally many of."""
    with WAYS[way]():
        model: Any = tr.FullyShardedDataParallel(net(48, 3), auto_wrap_policy=LINEAR)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        found = []
        generator = torch.Generator().manual_seed(rank)
        for step in range(12):
            if step % 3 == 0:  # else gradients add up
                optimizer.zero_grad()
            loss = model(torch.randn(5, 48, generator=generator)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found


class Pool:
    """Stands for memory of GPUs in two segments of one unit, which units have in turns."""

    def __init__(self) -> None:
        self._segments: list[Any] = []
        self._next = 0

    def allocate(self, values: Any) -> None:
        values.untyped_storage().resize_(values.nbytes)
        self._next += 1

    def address(self, values: Any) -> int:
        return 4096 * (self._next % 2)

    def segment_of(self, values: Any) -> tuple[int, int]:
        return 4096 * (self._next % 2), values.nbytes


class Registered:
    is_valid = True

    def __init__(self, closed: list[int], address: int) -> None:
        self._closed, self._address = closed, address

    def close(self) -> None:
        self.is_valid = False
        self._closed.append(self._address)


def in_slots(rank: int) -> dict[str, Any]:
    """Losses of a sharded model with registered memory and without; the addresses that were
    registered, and those that were given up with the group."""
    told: list[int] = []
    closed: list[int] = []

    def register(group: Any, address: int, num_bytes: int, owner: object) -> Any:
        told.append(address)
        return Registered(closed, address)

    def trained(is_registered: bool) -> list[float]:
        model: Any = net(48, 3)
        for layer in model:
            tr.fully_shard(layer)
        tr.fully_shard(model)
        for layer in model:
            layer.set_allocate_memory_from_process_group_for_comm(is_registered)
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
        generator = torch.Generator().manual_seed(rank)
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 48, generator=generator)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    with (
        as_on_gpus(),
        patch.object(ProcessGroup, "register_memory", register),
        patch.object(TorchFramework, "memory_pool", lambda *_: Pool()),
    ):
        both = trained(False), trained(True)
    kept = list(closed)
    registered_slots._slots.clear()
    gc.collect()  # models, which hold on to them
    return {"losses": both, "registered": told, "kept": kept, "closed": closed}


class Memory:
    """The memory of flat parameters and gradients that is still there."""

    def __init__(self) -> None:
        self._refs: list[Any] = []
        self._releasable = TorchFramework.releasable

    def made(self, framework: Any, size: int, dtype: str, like: Any) -> Any:
        values = self._releasable(framework, size, dtype, like)
        self._refs.append(values.untyped_storage()._weak_ref())
        return values

    def __call__(self) -> int:
        found = [torch.UntypedStorage._new_with_weak_ptr(each) for each in self._refs]
        return sum(each.nbytes() for each in found if each is not None)


@contextmanager
def measured() -> Iterator[Memory]:
    memory = Memory()
    with as_on_gpus(), patch.object(TorchFramework, "releasable", lambda *a: memory.made(*a)):
        yield memory


def held(steps: int, rank: int) -> dict[str, Any]:
    """Bytes after steps with and without gradients, and the most that there were."""
    with measured() as memory:
        model: Any = tr.FullyShardedDataParallel(net(64, 4), auto_wrap_policy=LINEAR)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = memory()
        with_gradients = 0
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(3, 64)).sum().backward()
            optimizer.step()
            with_gradients = memory()
        model.zero_grad()
        stats = model.memory_stats()
        return {
            "before": before,
            "with gradients": with_gradients,
            "after": memory(),
            "counted": stats.current,
            "parameters": stats.parameters,
            "peak": stats.peak,
        }


def unstaged(width: int, rank: int) -> list[bool]:
    """Whether the gradient of each layer was reduced from where autograd had put it."""
    made, reduced = [], []
    real = ProcessGroup.reduce_scatter_tensor

    def reduce(group: Any, output: Any, input: Any, *rest: Any, **named: Any) -> Any:
        reduced.append(input.data_ptr())
        return real(group, output, input, *rest, **named)

    with as_on_gpus(), patch.object(ProcessGroup, "reduce_scatter_tensor", reduce):
        model: Any = tr.FullyShardedDataParallel(net(width, 2), auto_wrap_policy=LINEAR)
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: made.append(gradient.data_ptr()))
        model(torch.ones(3, width)).sum().backward()
    return [first == second for first, second in zip(made, reduced, strict=True)]


class Estimator(nn.Module):
    """Uses the values of its weight a second time, without a gradient; that pass comes last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.eye(width)), nn.Parameter(torch.ones(width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        passed = nn.functional.linear(inputs, self.weight.detach())
        return passed + nn.functional.linear(inputs.detach(), self.weight, self.bias)


def detached(way: str, rank: int) -> list[bool]:
    """Return whether gradients of inputs are one process's if a pass needs values of a weight after
    its gradient has come, and whether all values are freed when it has ended."""
    with WAYS[way]():
        plain = nn.Sequential(Estimator(48), Estimator(48), Estimator(48))
        model: Any = tr.FullyShardedDataParallel(
            copy.deepcopy(plain), auto_wrap_policy=tr.ModuleTypeBasedAutoWrap(("Estimator",))
        )
        given = [torch.ones(2, 48, requires_grad=True) for _ in range(2)]
        for each, inputs in zip((plain, model), given, strict=True):
            each(inputs).square().sum().backward()
        memories = [memory for unit in model._sharding.units for _, memory in unit.laid]
        is_freed = all(each.whole.untyped_storage().nbytes() == 0 for each in memories)
        return [torch.equal(given[0].grad, given[1].grad), is_freed]


def retained(way: str, rank: int) -> list[list[float]]:
    """The gradients of two backward passes through one graph."""
    with WAYS[way]():
        model: Any = tr.FullyShardedDataParallel(net(48, 3), auto_wrap_policy=LINEAR)
        inputs = torch.randn(5, 48, generator=torch.Generator().manual_seed(rank))
        loss = model(inputs).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return [each.grad.flatten().tolist() for each in model.parameters()]


@contextmanager
def recorded(*names: str) -> Iterator[list[tuple[str, bool]]]:
    """The calls of these methods of groups, and whether they are waited for."""
    calls: list[tuple[str, bool]] = []

    def seen(name: str) -> Callable[..., Any]:
        real = getattr(ProcessGroup, name)
        signature = inspect.signature(real)

        def call(*given: Any, **named: Any) -> Any:
            bound = signature.bind(*given, **named)
            calls.append((name, bound.arguments.get("async_op", False)))
            return real(*given, **named)

        return call

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(ProcessGroup, name, seen(name)))
        yield calls


def hybrid_calls(rank: int) -> list[tuple[str, bool]]:
    """What a backward pass of three units calls, sharded over two ranks, with two replicas."""
    mesh = tr.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    with as_on_gpus():
        model: Any = tr.FullyShardedDataParallel(
            net(48, 3), process_group=mesh, sharding_strategy="hybrid", auto_wrap_policy=LINEAR
        )
        loss = model(torch.ones(2, 48)).sum()
        with recorded("reduce_scatter_tensor", "all_reduce") as calls:
            loss.backward()
    return calls


def replicas_differ(way: str, rank: int) -> str:
    """What is said if the ranks of one replica use less of a unit than those of the other."""
    mesh = tr.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    with WAYS[way]():
        torch.manual_seed(0)
        model: Any = tr.FullyShardedDataParallel(
            Two(),
            process_group=mesh,
            sharding_strategy="hybrid",
            auto_wrap_policy=tr.NoAutoWrap(),
            min_num_params=0,
        )
        return raised(lambda: model(torch.ones(2, 3), second=rank < 2).sum().backward())


def offloaded_order(rank: int) -> list[str]:
    """What happens to two units that are offloaded, in a step: parts go to the device before they
    are gathered, and gradients have come back before an optimizer may look at them."""
    events: list[str] = []
    with WAYS["offloaded"]():
        model: Any = tr.FullyShardedDataParallel(
            net(48, 2), auto_wrap_policy=LINEAR, backward_prefetch="none"
        )
        copy, moment = TorchFramework.copy_without_waiting, TorchFramework.moment
        own = {each.data.untyped_storage().data_ptr() for each in model.parameters()}

        def copied(target: torch.Tensor, source: torch.Tensor) -> None:
            is_part = source.untyped_storage().data_ptr() in own
            events.append("part in" if is_part else "gradient out")
            copy(target, source)

        def waiting(like: torch.Tensor) -> Callable[[], None]:
            wait, is_out = moment(like), events[-1] == "gradient out"
            return lambda: (events.append("waited"), wait())[1] if is_out else wait()

        def noted(name: str, said: str) -> Any:
            real = getattr(ProcessGroup, name)
            return patch.object(
                ProcessGroup, name, lambda *a, **k: (events.append(said), real(*a, **k))[1]
            )

        with (
            patch.object(TorchFramework, "copy_without_waiting", staticmethod(copied)),
            patch.object(TorchFramework, "moment", staticmethod(waiting)),
            noted("all_gather_into_tensor", "gather"),
            noted("reduce_scatter_tensor", "reduce"),
        ):
            model(torch.ones(2, 48)).sum().backward()
            events.append("over")
        assert not any(each.grad.isnan().any() for each in model.parameters())
    return events


def stepped_fused(way: str, rank: int) -> tuple[bytes, set[tuple[str, str]]]:
    """The bits of a model that torch's fused AdamW has trained, and where its state is."""
    torch.manual_seed(0)
    with WAYS[way]():
        model: Any = tr.FullyShardedDataParallel(net(48, 2), auto_wrap_policy=LINEAR)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        for step in range(4):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(2 * step + rank)
            model(torch.randn(2, 48, generator=generator)).square().mean().backward()
            optimizer.step()
        whole = [each.flatten() for each in model.state_dict().values()]
    moments = [each["exp_avg"] for each in optimizer.state.values()]
    where = {(str(each.device), str(each.dtype)) for each in moments}
    return torch.cat(whole).numpy().tobytes(), where


def activations(rank: int) -> tuple[list[tuple[int, ...]], bool]:
    """The shapes of what is taken to the CPU in a pass, and whether gradients stay as they are."""
    taken: list[tuple[int, ...]] = []

    def copied(target: torch.Tensor, source: torch.Tensor) -> None:
        taken.append(tuple(target.shape))
        target.copy_(source)

    def gradients(**options: Any) -> list[torch.Tensor]:
        model: Any = tr.FullyShardedDataParallel(net(48, 3), auto_wrap_policy=LINEAR, **options)
        model(torch.linspace(0, 1, 5 * 48).reshape(5, 48)).square().sum().backward()
        return [each.grad for each in model.parameters()]

    with (
        patch.multiple(torch_offload, is_on_gpu=lambda _: True, _LEAST=0),
        patch.multiple(torch_offload, aside=lambda _: nullcontext(), moment=lambda _: lambda: None),
        patch.object(torch_offload, "copy_without_waiting", copied),
    ):
        found = gradients(activation_offload=True)
    return taken, all(map(torch.equal, found, gradients()))
