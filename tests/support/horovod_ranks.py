"""What ranks do with Horovod's interface to torch, and what comes out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

import torsh_runtime.integrations.horovod.torch as hvd
from torsh_runtime.errors import TorshError

Body = Callable[[int], Any]
RANKS = 4


def within(body: Body) -> Body:
    """Between init() and shutdown()."""

    @wraps(body)
    def run(rank: int) -> Any:
        hvd.init()
        try:
            return body(rank)
        finally:
            hvd.shutdown()

    return run


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except TorshError as error:
        return str(error)
    return "no error"


@within
def operations(rank: int) -> Any:
    x = torch.tensor([float(rank), 1.0])
    kept = x.clone()
    whole = torch.arange(10.0).view(5, 2) + rank
    in_place = x.clone()
    hvd.allreduce_(in_place, op=hvd.Max)
    sent, came = hvd.alltoall(torch.arange(RANKS * 2) + 10 * rank, torch.tensor([1, 0, 3, 2]))
    grouped = hvd.grouped_allreduce([x, x.double() * 2], op=hvd.Sum)
    half = hvd.allreduce(x, compression=hvd.Compression.fp16)
    results = {
        "average": hvd.allreduce(x),
        "sum": hvd.allreduce(x, op=hvd.Sum),
        "integers": hvd.allreduce(torch.tensor([rank, 7]), op=hvd.Average),
        "scaled": hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        "product": hvd.allreduce(x + 1, op=hvd.Product),
        "max": in_place,
        "gathered": hvd.allgather(whole[: rank + 1, 0]),
        "sent": hvd.broadcast(x, 2),
        "alltoall": sent,
        "came": came,
        "scattered": hvd.reducescatter(whole, op=hvd.Sum),
        "grouped": torch.cat(grouped),
        "half": half,
        "number": hvd.allreduce(torch.tensor(float(rank))),
        "nothing": hvd.allreduce(torch.empty(0)),
    }
    assert half.dtype is x.dtype
    assert torch.equal(x, kept)
    return {name: each.tolist() for name, each in results.items()}


@within
def names(rank: int) -> Any:
    """Each rank calls the same operations in another order."""
    order = [(n + rank) % 8 for n in range(8)]
    handles = {
        n: hvd.allreduce_async(torch.tensor([float(n)]), name=f"n {n}", op=hvd.Sum) for n in order
    }
    handles[8] = hvd.broadcast_async(torch.tensor([float(rank)]), 3, name="n 0")
    found = [hvd.synchronize(handles[n]).item() for n in sorted(handles)]
    assert all(hvd.poll(each) for each in handles.values())
    return found


@within
def disagreements(rank: int) -> Any:
    x = torch.ones(3)
    found = [
        error_of(lambda: hvd.allreduce(torch.ones(3 + rank // 3), name="shape")),
        error_of(lambda: hvd.allreduce(x, op=hvd.Sum if rank else hvd.Average, name="op")),
        error_of(lambda: hvd.broadcast(x, int(rank == 1), name="root")),
        error_of(lambda: hvd.allreduce(x, name="one" if rank < 2 else "other")),
    ]
    if rank:
        hvd.barrier()  # until then rank 0's first call is under way
    handle = hvd.allreduce_async(x, name="twice")
    if rank == 0:
        found.append(error_of(lambda: hvd.allreduce_async(x, name="twice")))
        hvd.barrier()
    hvd.synchronize(handle)
    return found, hvd.allreduce(x, op=hvd.Sum).tolist()  # all of which does no harm


@within
def gradients(rank: int) -> Any:
    def of(call: Callable[[torch.Tensor], Any], rows: int = 2) -> list[Any]:
        x = torch.full((rows, 1), float(rank), requires_grad=True)
        result = call(x)
        weights = (torch.arange(result.numel()) + rank).view(result.shape)
        (result * weights).sum().backward()
        assert x.grad is not None
        return x.grad.flatten().tolist()

    return {
        "sum": of(lambda x: hvd.allreduce(x, op=hvd.Sum)),
        "average": of(lambda x: hvd.allreduce(x)),
        "grouped": of(lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0]),
        "allgather": of(hvd.allgather, rank + 1),
        "broadcast": of(lambda x: hvd.broadcast(x, 1)),
        "alltoall": of(lambda x: hvd.alltoall(x, [1, 1, 1, 1])[0], 4),
        "reducescatter": of(lambda x: hvd.reducescatter(x, op=hvd.Sum), 4),
    }


@within
def objects(rank: int) -> Any:
    whole = {"rank": rank, "tensor": torch.tensor([rank])}
    return hvd.broadcast_object(whole if rank == 1 else None, 1), hvd.allgather_object(rank * 2)


@within
def joined(rank: int) -> Any:
    """Ranks have different numbers of batches."""
    sums = [hvd.allreduce(torch.ones(2), op=hvd.Sum, name="x").tolist() for _ in range(rank + 1)]
    if rank == 3:
        sums.append(error_of(lambda: hvd.allgather(torch.ones(1))))
    first = hvd.join()
    return sums, first, hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), hvd.join() in range(RANKS)


@within
def process_sets(rank: int) -> Any:
    even, odd = hvd.add_process_set([0, 2]), hvd.add_process_set(hvd.ProcessSet([1, 3]))
    own, other = (odd, even) if rank % 2 else (even, odd)
    x = torch.tensor([float(rank)])
    found = [
        own.included() and not other.included(),
        own.rank(),
        hvd.allreduce(x, op=hvd.Sum, process_set=own).item(),
        hvd.broadcast(x, 2 + rank % 2, process_set=own).item(),
        hvd.allgather(x, process_set=own).tolist(),
        error_of(lambda: hvd.allreduce(x, process_set=other)),
        error_of(lambda: hvd.add_process_set([0, 2])),
        error_of(lambda: hvd.ProcessSet([0]).engine),
        hvd.remove_process_set(own),
        hvd.remove_process_set(hvd.global_process_set),
    ]
    return [*found, hvd.allreduce(x).item()]


@within
def adasum(rank: int) -> Any:
    one = torch.zeros(RANKS).index_fill_(0, torch.tensor(rank), 2.0)
    same = torch.tensor([3.0, 4.0])
    three = error_of(lambda: hvd.allreduce(one.int(), op=hvd.Adasum))
    return [hvd.allreduce(each, op=hvd.Adasum).tolist() for each in (one, same)], three


@within
def places(rank: int) -> Any:
    numbers = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size(), hvd.is_homogeneous()
    timeline = error_of(lambda: hvd.start_timeline("x"))
    return numbers, hvd.mpi_built(), hvd.gloo_enabled(), timeline


@within
def refusals(_: int) -> Any:
    """Mistakes that are found before other ranks hear of the call."""
    x, number = torch.ones(4), torch.tensor(1.0)
    calls: list[Callable[[], Any]] = [
        lambda: hvd.alltoall(x, torch.ones(4)),
        lambda: hvd.alltoall(x, [1, 1, 1, 2]),
        lambda: hvd.alltoall(torch.ones(5)),
        lambda: hvd.allgather(number),
        lambda: hvd.reducescatter(x, op=hvd.Adasum),
        lambda: hvd.allreduce(x, op="Median"),
        lambda: hvd.allreduce(x, average=True, op=hvd.Sum),
        lambda: hvd.broadcast(x, 4),
        lambda: hvd.broadcast_parameters(x, 0),
        lambda: hvd.mpi_threads_supported(),
    ]
    return [error_of(call) for call in calls], hvd.allreduce(x).tolist()


@within
def left_alone(rank: int) -> Any:
    """Rank 1 has gone, and rank 0 waits for it."""
    if rank == 1:
        return None
    try:
        hvd.allreduce(torch.ones(1), name="x")
    except hvd.HorovodInternalError as error:
        return type(error).__name__, error.__notes__, error_of(lambda: hvd.barrier())
    return "no error"


def outside(_: int) -> Any:
    return error_of(hvd.rank), hvd.is_initialized()


OPERATIONS: dict[str, Body] = {
    "operations": operations,
    "names": names,
    "disagreements": disagreements,
    "gradients": gradients,
    "objects": objects,
    "joined": joined,
    "process_sets": process_sets,
    "adasum": adasum,
    "places": places,
    "refusals": refusals,
    "outside": outside,
}


class Branches(torch.nn.Module):
    """Gradients come in an order that depends on the rank, and one layer is not always used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.rare, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, first: int, uses_rare: bool) -> torch.Tensor:
        layers = [self.left, self.right] if first else [self.right, self.left]
        hidden = layers[0](x).tanh() + layers[1](x).relu()
        if uses_rare:
            hidden = hidden + self.rare(x)
        value: torch.Tensor = self.last(hidden)
        return value


def trained(rank: int, ranks: int, way: str) -> list[float]:
    """The parameters after some steps. Of one rank, which gets all batches of `ranks` ranks, that
    is what is expected."""
    model = Branches()
    if hvd.size() > 1 and rank:  # the broadcast is to mend that
        for each in model.parameters():
            each.data.zero_()
    passes = 2 if way == "two passes" else 1
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    named = None if way == "unnamed" else model.named_parameters()
    options: dict[str, Any] = {
        "two passes": {"backward_passes_per_step": 2},
        "predivided": {"gradient_predivide_factor": 2.0},
        "summed": {"op": hvd.Sum},
        "half": {"compression": hvd.Compression.fp16},
    }.get(way, {})
    optimizer = hvd.DistributedOptimizer(optimizer, named, **options)
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    data = torch.randn(6, passes, 4, 3, 4, generator=torch.Generator().manual_seed(1))
    for step in range(6):
        optimizer.zero_grad()
        for number in range(passes):
            own = [rank] if hvd.size() > 1 else range(ranks)
            for part in own:
                loss = model(data[step, number, part], part % 2, part == 0).square().mean()
                share = 1 if hvd.size() > 1 or way == "summed" else ranks
                (loss / share).backward()
        if way == "clipped":
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        scheduler.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


WAYS = ("plain", "unnamed", "two passes", "predivided", "summed", "half", "clipped")


def training(way: str, ranks: int) -> Body:
    return within(lambda rank: trained(rank, ranks, way))


@within
def adasum_training(rank: int) -> Any:
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.data.zero_()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer: Any = hvd.DistributedOptimizer(inner, model.named_parameters(), op=hvd.Adasum)
    model(torch.eye(2)[rank]).sum().backward()  # gradients of the two ranks are orthogonal
    optimizer.step()
    optimizer.zero_grad()
    model(torch.ones(2)).sum().backward()  # and now they are the same
    optimizer.step()
    return model.weight.tolist()


@within
def sparse_training(rank: int) -> Any:
    found = []
    for dense in (False, True):
        table = torch.nn.Embedding(4, 1, sparse=True)
        table.weight.data.zero_()
        inner = torch.optim.SGD(table.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(inner, sparse_as_dense=dense)
        table(torch.tensor([rank, 3])).sum().backward()
        optimizer.step()
        found.append(table.weight.flatten().tolist())
    return found


class Twin:
    """A model and an optimizer on two ranks, beside one that is given both ranks' batches."""

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        self.model, self.expected = model, copy.deepcopy(model)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        self.optimizer: Any = hvd.DistributedOptimizer(inner, model.named_parameters(), **options)

    def step(self, *batches: Any) -> None:
        """One step, of the batches of ranks 0 and 1."""
        self.optimizer.zero_grad()
        self.model(batches[hvd.rank()]).square().mean().backward()
        self.optimizer.step()
        self.expected.zero_grad()
        for batch in batches:
            (self.expected(batch).square().mean() / len(batches)).backward()
        with torch.no_grad():
            for own, each in zip(self.model.parameters(), self.expected.parameters(), strict=True):
                if each.grad is not None:
                    each -= 0.1 * each.grad.to_dense()
                torch.testing.assert_close(own, each)


class Halving:
    """A compressor that has to see each gradient in its own shape."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor.flatten() / 2, tensor.shape

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.view(ctx) * 2


@within
def changing_training(rank: int) -> Any:
    """What optimizers meet on the way: frozen and new parameters, layouts, each rank's own rows."""
    torch.manual_seed(0)
    rows = torch.randn(12, 4, 4).unbind()
    layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).double(), torch.nn.Linear(4, 4)]
    model = torch.nn.Sequential(layers[0], Cast(torch.float64), layers[1], Cast(torch.float32))
    layers[0].requires_grad_(False)
    twin, other = Twin(model), Twin(copy.deepcopy(model), compression=Halving)
    for number in range(4):
        layers[0].requires_grad_(number in (1, 2))
        twin.expected[0].requires_grad_(number in (1, 2))
        twin.step(*rows[:2])
        other.step(*rows[2:4])
    model.append(layers[2])
    twin.expected.append(copy.deepcopy(layers[2]))
    twin.optimizer.add_param_group({"params": [*layers[2].parameters()], "lr": 0.1})
    twin.step(*rows[4:6])
    twin.step(*rows[6:8])
    images = torch.randn(2, 1, 3, 5, 5)
    kernels = torch.nn.Conv2d(3, 2, 3, bias=False).to(memory_format=torch.channels_last)
    Twin(kernels).step(*images)
    table = Twin(torch.nn.Embedding(4, 2, sparse=True))
    table.step(torch.tensor([0]), torch.tensor([0, 3]))
    inner = table.optimizer
    inner.zero_grad()
    if rank:  # the other rank has not used the table
        table.model(torch.tensor([2])).sum().backward()
    inner.step()
    return table.model.weight[2].tolist(), (table.expected.weight[2] - 0.05).tolist()


class Cast(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


@within
def uneven_training(rank: int) -> Any:
    """Rank 0 has no batch in the first epoch, and has fewer in the second."""
    model = torch.nn.Linear(4, 1, bias=False)
    model.weight.data.fill_(1.0)
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for epoch in range(2):
        for _ in range(2 * rank + epoch):
            optimizer.zero_grad()
            model(torch.ones(4)).sum().backward()
            optimizer.step()
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), 1)
    return model.weight.flatten().tolist()


def started_twice(_: int) -> Any:
    """The same optimizer between init() and shutdown(), twice."""
    model = torch.nn.Linear(4, 1, bias=False)
    model.weight.data.fill_(1.0)
    hvd.init()
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for number in range(2):
        hvd.init()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.full((4,), float(hvd.rank()))).sum().backward()
            optimizer.step()
        hvd.shutdown()
        assert model.weight.grad is not None, number
        assert model.weight.grad.tolist() == [[0.5] * 4]
    return model.weight.flatten().tolist()


@within
def alike_names(_: int) -> Any:
    """Backward passes of one network through another one whose gradients have the same names."""
    generator, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizers: list[Any] = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(each.parameters(), lr=0.1), each.named_parameters()
        )
        for each in (generator, critic)
    ]
    critic(generator(torch.ones(2))).sum().backward()
    for each in reversed(optimizers):
        each.step()
    return True


@within
def mistakes(rank: int) -> Any:
    model = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer: Any = hvd.DistributedOptimizer(inner)
    model(torch.ones(2)).sum().backward()
    found = []
    for call in (optimizer.zero_grad, lambda: model(torch.ones(2)).sum().backward()):
        try:
            call()
        except AssertionError as error:
            found.append(str(error))
    optimizer.step()
    pairs = [("a", model.weight), ("a", model.bias)]
    return [
        *found,
        error_of(lambda: hvd.DistributedOptimizer(inner, pairs)),
        error_of(lambda: hvd.DistributedOptimizer(inner, [("a", model.weight)])),
        error_of(lambda: hvd.DistributedOptimizer(inner, backward_passes_per_step=0)),
    ]


@within
def batch_norm(rank: int) -> Any:
    torch.manual_seed(0)
    data = torch.randn(8, 3, requires_grad=True)
    expected = torch.nn.BatchNorm1d(3)(data)
    own = data.detach()[rank * 4 : rank * 4 + 4].requires_grad_()
    layer = hvd.SyncBatchNorm(3)
    result = layer(own)
    torch.testing.assert_close(result, expected[rank * 4 : rank * 4 + 4])
    return "as one process"
