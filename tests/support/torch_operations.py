"""What each rank does in the tests of torch.distributed's operations on torsh."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.tensor import distribute_tensor, init_device_mesh
from torch.testing._internal.two_tensor import TwoTensor

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
ALL = (torch.bool, *INTEGERS, *FLOATS, *COMPLEX)
Op = dist.ReduceOp


def own(rank: int, dtype: torch.dtype, size: int = 6) -> torch.Tensor:
    """What a rank brings: small numbers, so that sums are exact in every dtype."""
    return (torch.arange(size) % 3 + rank + 1).to(dtype)


def total(ranks: int, dtype: torch.dtype, size: int = 6) -> torch.Tensor:
    return torch.stack([own(rank, dtype, size) for rank in range(ranks)]).sum(0).to(dtype)


def same(left: torch.Tensor, right: torch.Tensor) -> None:
    assert left.dtype == right.dtype
    assert torch.equal(left, right), (left, right)


def reduces(rank: int, ranks: int) -> None:
    for dtype in ALL:
        tensor = own(rank, dtype)
        dist.all_reduce(tensor)
        same(tensor, total(ranks, dtype))
        tensor = own(rank, dtype)
        dist.reduce(tensor, ranks - 1)
        same(tensor, total(ranks, dtype) if rank == ranks - 1 else own(rank, dtype))
        output = torch.empty(6, dtype=dtype)
        dist.reduce_scatter(output, [own(rank + part, dtype) for part in range(ranks)])
        wanted = torch.stack([own(peer + rank, dtype) for peer in range(ranks)]).sum(0)
        same(output, wanted.to(dtype))
        flat = torch.cat([own(rank + part, dtype) for part in range(ranks)])
        dist.reduce_scatter_tensor(output.zero_(), flat)
        same(output, wanted.to(dtype))


def reductions(rank: int, ranks: int) -> None:
    brought = [own(peer, torch.int64) for peer in range(ranks)]
    stacked = torch.stack(brought)
    expected = {
        Op.SUM: stacked.sum(0),
        Op.PRODUCT: stacked.prod(0),
        Op.MIN: stacked.amin(0),
        Op.MAX: stacked.amax(0),
        Op.AVG: stacked.sum(0) // ranks,
    }
    for op, fold in ((Op.BAND, "and"), (Op.BOR, "or"), (Op.BXOR, "xor")):
        result = brought[0]
        for other in brought[1:]:
            result = getattr(torch, f"bitwise_{fold}")(result, other)
        expected[op] = result
    for op, wanted in expected.items():
        tensor = own(rank, torch.int64)
        dist.all_reduce(tensor, op)
        same(tensor, wanted)
    tensor = own(rank, torch.float32)
    dist.all_reduce(tensor, Op.AVG)
    same(tensor, total(ranks, torch.float32) / ranks)
    tensor = own(rank, torch.float32)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    same(tensor, total(ranks, torch.float32) * 0.5)


def moves(rank: int, ranks: int) -> None:
    for dtype in (*ALL, torch.float8_e4m3fn):
        mine = own(rank, dtype)
        everyone = [own(peer, dtype) for peer in range(ranks)]
        for root in range(ranks):
            tensor = own(rank, dtype)
            dist.broadcast(tensor, root)
            same(tensor.float(), own(root, dtype).float())
            parts = [torch.empty_like(mine) for _ in range(ranks)] if rank == root else None
            dist.gather(mine, parts, root)
            for got, wanted in zip(parts or [], everyone, strict=False):
                same(got.float(), wanted.float())
            dist.scatter(tensor, everyone if rank == root else None, root)
            same(tensor.float(), mine.float())
        parts = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(parts, mine)
        same(torch.cat([part.float() for part in parts]), torch.cat(everyone).float())
        flat = torch.empty(6 * ranks, dtype=dtype)
        dist.all_gather_into_tensor(flat, mine)
        same(flat.float(), torch.cat(everyone).float())


def exchanges(rank: int, ranks: int) -> None:
    sent = torch.arange(ranks) * 10 + rank
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    same(got, torch.arange(ranks) + rank * 10)
    sizes = [(rank + peer) % 3 for peer in range(ranks)]  # symmetric: what goes also comes
    sent = torch.full((sum(sizes), 2), float(rank))
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, sizes, sizes)
    same(
        got,
        torch.repeat_interleave(torch.arange(ranks), torch.tensor(sizes))[:, None]
        + torch.zeros(1, 2),
    )
    inputs = [torch.full((size,), rank) for size in sizes]
    outputs = [torch.empty(size, dtype=torch.int64) for size in sizes]
    dist.all_to_all(outputs, inputs)
    for peer, (output, size) in enumerate(zip(outputs, sizes, strict=True)):
        same(output, torch.full((size,), peer))


def uneven_lists(rank: int, ranks: int) -> None:
    parts = [torch.empty(peer + 1) for peer in range(ranks)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank)))
    for peer, part in enumerate(parts):
        same(part, torch.full((peer + 1,), float(peer)))
    output = torch.empty(rank)
    dist.reduce_scatter(output, [torch.ones(peer) for peer in range(ranks)])
    same(output, torch.full((rank,), float(ranks)))


def strided(rank: int, ranks: int) -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    tensor = (matrix + rank).t()
    dist.all_reduce(tensor)
    same(tensor, (matrix * ranks + sum(range(ranks))).t())
    wide = torch.zeros(3, 8)
    dist.broadcast(wide[:, ::2], 0) if rank else dist.broadcast((wide + 1)[:, ::2], 0)
    if rank:
        same(wide, torch.tensor([1.0, 0.0] * 4).expand(3, 8))


def coalesced(rank: int, ranks: int) -> None:
    tensors = [own(rank, torch.float32, size) for size in (1, 6, 100)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        same(tensor, total(ranks, torch.float32, len(tensor)))
    outputs = [torch.empty(6 * ranks) for _ in range(2)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.all_gather_single(output, own(rank, torch.float32))
    for output in outputs:
        same(output, torch.cat([own(peer, torch.float32) for peer in range(ranks)]))
    outputs = [torch.empty(1) for _ in range(2)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.reduce_scatter_single(output, torch.arange(float(ranks)))
    for output in outputs:
        same(output, torch.tensor([float(rank * ranks)]))


def older_spellings(rank: int, ranks: int) -> None:
    group = dist.group.WORLD
    same_as = total(ranks, torch.float32)
    for call in (lambda t: group.allreduce(t), lambda t: group.allreduce([t])):
        tensor = own(rank, torch.float32)
        call(tensor).wait()
        same(tensor, same_as)
    group.allreduce(tensor := own(rank, torch.float32), Op.MAX, timedelta(seconds=9)).wait()
    same(tensor, own(ranks - 1, torch.float32))
    group.reduce(tensor := own(rank, torch.float32), root=1, op=Op.SUM).wait()
    same(tensor, same_as if rank == 1 else own(rank, torch.float32))
    group.broadcast(tensor := own(rank, torch.float32), root=1).wait()
    same(tensor, own(1, torch.float32))
    parts = [torch.empty(6) for _ in range(ranks)]
    group.allgather(parts, own(rank, torch.float32)).wait()
    same(parts[1], own(1, torch.float32))
    group.gather(parts if rank == 0 else [], own(rank, torch.float32), 0).wait()
    group.scatter(torch.empty(6), parts if rank == 0 else [], 0).wait()
    output = torch.empty(6)
    group.reduce_scatter(output, [own(rank, torch.float32)] * ranks).wait()
    same(output, same_as)
    flat = torch.empty(6 * ranks)
    group._allgather_base(flat, own(rank, torch.float32)).wait()
    same(flat[6:12], own(1, torch.float32))
    group._reduce_scatter_base(output, flat).wait()
    same(output, own(rank, torch.float32) * ranks)
    group.alltoall_base(torch.empty(ranks), torch.ones(ranks), [], []).wait()
    group.barrier(timeout=timedelta(seconds=9)).wait()
    with pytest.raises(TypeError, match="root, timeout or opts"):
        group.broadcast([output], source=0)
    lists = [[torch.empty(6), torch.empty(2)] for _ in range(ranks)]
    group.allgather_coalesced(lists, [own(rank, torch.float32), torch.ones(2) * rank]).wait()
    same(lists[1][1], torch.ones(2))


def functional(rank: int, ranks: int) -> None:
    """As DTensor and torch.compile call: through C++, which finds the group by its name."""
    group, tensor = dist.group.WORLD, own(rank, torch.float32, 4)
    wanted = total(ranks, torch.float32, 4)
    same(funcol.all_reduce(tensor, "sum", group) + 0, wanted)
    same(funcol.all_reduce(tensor, "avg", group) + 0, wanted / ranks)
    everyone = torch.cat([own(peer, torch.float32, 4) for peer in range(ranks)])
    same(funcol.all_gather_tensor(tensor, 0, group) + 0, everyone)
    same(funcol.reduce_scatter_tensor(everyone, "sum", 0, group) + 0, tensor * ranks)
    same(funcol.broadcast(tensor, 1, group) + 0, own(1, torch.float32, 4))
    exchanged = funcol.all_to_all_single(tensor, None, None, group) + 0
    part = slice(4 // ranks * rank, 4 // ranks * (rank + 1))
    same(exchanged, torch.cat([own(peer, torch.float32, 4)[part] for peer in range(ranks)]))
    for reduced in funcol.all_reduce_coalesced([tensor, tensor], "sum", group):
        same(reduced + 0, wanted)
    for gathered in funcol.all_gather_into_tensor_coalesced([tensor, tensor], group):
        same(gathered + 0, everyone)
    pair, sizes = [everyone, everyone], [0, 0]
    for scattered in funcol.reduce_scatter_tensor_coalesced(pair, "sum", sizes, group):
        same(scattered + 0, tensor * ranks)
    _functional_operators(rank, ranks, tensor, everyone)


def _functional_operators(
    rank: int, ranks: int, tensor: torch.Tensor, everyone: torch.Tensor
) -> None:
    """Those that only compiled code calls."""
    made, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
    for named in (name, dist.group.WORLD):
        out = torch.empty_like(everyone)
        made.all_gather_into_tensor_out(tensor, ranks, named, out=out)
        same(made.wait_tensor(out), everyone)
    out = torch.empty_like(tensor)
    made.reduce_scatter_tensor_out(everyone, "avg", ranks, name, out=out)
    same(made.wait_tensor(out), tensor)
    peers, parts = [(rank + 1) % ranks, (rank - 1) % ranks], [tensor, torch.empty(4)]
    works = made.batch_p2p_ops(["isend", "irecv"], peers, [3, 3], parts, name)
    got = [made.wait_tensor(work) for work in works][1]
    same(got, own(peers[1], torch.float32, 4))


class Subclass(torch.Tensor):
    """Has memory of its own, as torch.nn.Parameter has."""


def subclasses(rank: int, ranks: int) -> None:
    group, wanted = dist.group.WORLD, total(ranks, torch.float32, 4)
    for made in (lambda own: own.as_subclass(Subclass), torch.nn.Parameter):
        tensor = made(own(rank, torch.float32, 4))
        with torch.no_grad():
            dist.all_reduce(tensor)
        same(tensor.data.as_subclass(torch.Tensor), wanted)
    everyone = torch.cat([own(peer, torch.float32, 4) for peer in range(ranks)])
    for dtype in (torch.float32, torch.bfloat16):  # results that nobody has waited for yet
        late = funcol.all_gather_tensor(own(rank, dtype, 4), 0, group)
        assert type(late) is funcol.AsyncCollectiveTensor
        dist.all_reduce(late)
        same(late + 0, everyone.to(dtype) * ranks)
    parts = [torch.empty(4) for _ in range(ranks)]
    dist.all_gather(parts, funcol.all_reduce(own(rank, torch.float32, 4), "sum", group))
    for part in parts:
        same(part, wanted)
    got = torch.empty(4)
    late = funcol.all_reduce(own(rank, torch.float32, 4), "sum", group)
    sent = dist.isend(late, (rank + 1) % ranks)
    dist.recv(got, (rank - 1) % ranks)
    sent.wait()
    same(got, wanted)


def stand_for_others(rank: int, ranks: int) -> None:
    """Tensors without memory of their own, whose class says what becomes of those within."""

    def two(peer: int) -> Any:
        return TwoTensor(own(peer, torch.float32, 4), own(peer + 9, torch.float32, 4))

    def check(got: Any, wanted: Any) -> None:
        assert type(got) is TwoTensor
        same(got.a, wanted.a)
        same(got.b, wanted.b)

    everyone = [two(peer) for peer in range(ranks)]
    dist.all_reduce(got := two(rank))
    check(got, sum(everyone[1:], everyone[0]))
    work = dist.broadcast(got := two(rank), 1, async_op=True)
    assert work.wait()
    check(got, two(1))
    dist.scatter(got := two(rank), everyone if rank == 0 else None)
    check(got, two(rank))
    dist.all_gather_into_tensor(flat := torch.cat(everyone), two(rank))
    check(flat, torch.cat(everyone))
    dist.all_to_all_single(got := torch.cat(everyone), torch.cat(everyone))
    check(got, torch.cat([two(rank)] * ranks))
    with pytest.raises(TypeError, match="to_local"):
        dist.all_reduce(distribute_tensor(torch.ones(ranks), init_device_mesh("cpu", (ranks,))))


def messages(rank: int, ranks: int) -> None:
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    got = torch.empty(1000)
    operations = [
        dist.P2POp(dist.isend, torch.full((1000,), float(rank)), following),
        dist.P2POp(dist.irecv, got, before),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(got, torch.full((1000,), float(before)))
    first, second = torch.empty(1), torch.empty(1)
    works = [dist.isend(torch.tensor([float(tag)]), following, tag=tag) for tag in (7, 8)]
    dist.recv(second, before, tag=8)
    dist.recv(first, before, tag=7)
    assert (first.item(), second.item()) == (7.0, 8.0)
    for work in works:
        work.wait()
    if rank == 0:
        sources = set()
        for _ in range(ranks - 1):
            sources.add(dist.recv(got))
            assert got[0].item() in sources
        assert sources == set(range(1, ranks))
    else:
        dist.send(torch.full((1000,), float(rank)), 0)


def objects(rank: int, ranks: int) -> None:
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, {"rank": rank})
    assert everyone == [{"rank": peer} for peer in range(ranks)]
    shared = ["of 0"] if rank == 0 else [None]
    dist.broadcast_object_list(shared, 0)
    assert shared == ["of 0"]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, list(range(ranks)) if rank == 0 else None, 0)
    assert mine == [rank]
    gathered = [None] * ranks if rank == 1 else None
    dist.gather_object((rank,), gathered, 1)
    assert gathered in (None, [(peer,) for peer in range(ranks)])
    if rank == 0:
        dist.send_object_list([1, "two"], 1)
    elif rank == 1:
        received = [None, None]
        dist.recv_object_list(received, 0)
        assert received == [1, "two"]


def asynchronous(rank: int, ranks: int) -> None:
    tensors = [own(rank, torch.float32, 1000 + turn) for turn in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work, tensor in zip(works, tensors, strict=True):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0] is tensor
        same(tensor, total(ranks, torch.float32, len(tensor)))
    future = dist.all_reduce(own(rank, torch.float32), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), total(ranks, torch.float32) * 2)
    # Legal, for an asynchronous operation may not hold its caller up.
    work = dist.all_reduce(tensor := own(rank, torch.float32), async_op=True) if rank == 0 else None
    if rank == 0:
        dist.send(torch.ones(1), 1)
    elif rank == 1:
        dist.recv(torch.empty(1), 0)
    work = work or dist.all_reduce(tensor := own(rank, torch.float32), async_op=True)
    work.wait()
    same(tensor, total(ranks, torch.float32))


class _Within(torch.autograd.Function):
    """Does something in the backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, act: Any) -> torch.Tensor:  # type: ignore[override]
        ctx.act = act
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.act()
        return gradients[0], None


def in_backward_passes(rank: int, ranks: int) -> None:
    """What is legal elsewhere is so in a backward pass, where operations may run at once."""
    groups = [dist.new_group(), dist.new_group()]
    if rank % 2:
        groups.reverse()

    def crossed() -> None:
        tensors = [own(rank, torch.float32) for _ in groups]
        works = [
            dist.all_reduce(tensor, group=group, async_op=True)
            for tensor, group in zip(tensors, groups, strict=True)
        ]
        for work, tensor in zip(works, tensors, strict=True):
            work.wait()
            same(tensor, total(ranks, torch.float32))

    def beside_a_message() -> None:
        tensor, room = own(rank, torch.float32), torch.empty(1)
        if rank:
            dist.recv(room, 0)
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            for peer in range(1, ranks):
                dist.send(torch.ones(1), peer)
        work.wait()
        same(tensor, total(ranks, torch.float32))

    for act in (crossed, beside_a_message) * 3:
        _Within.apply(torch.ones(3, requires_grad=True), act).sum().backward()


def sparse(rank: int, ranks: int) -> None:
    tensor = torch.sparse_coo_tensor([[rank, 0]], [1.0, 2.0], (ranks,), check_invariants=True)
    dist.all_reduce(tensor)
    wanted = torch.ones(ranks)
    wanted[0] += 2 * ranks
    same(tensor.to_dense(), wanted)


def subgroups(rank: int, ranks: int) -> None:
    pairs = [dist.new_group([first, first + 1]) for first in range(ranks - 1)]
    for first, pair in enumerate(pairs):
        if rank in (first, first + 1):
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=pair)
            assert tensor.item() == 2 * first + 1
            assert dist.get_backend(pair) == "torsh"
    last = dist.new_group([ranks - 1])
    if rank == ranks - 1:
        dist.all_reduce(tensor := torch.ones(1), group=last)
        assert tensor.item() == 1


def splits(rank: int, ranks: int) -> None:
    group, half = dist.group.WORLD, ranks // 2
    mine = group.split_group([*range(half)] if rank < half else [*range(ranks - 1, half - 1, -1)])
    assert (mine.rank(), mine.size()) == (rank % half, half)
    dist.all_reduce(tensor := torch.tensor([float(rank)]), group=mine)
    assert tensor.item() == sum(range(half)) + (half * half if rank >= half else 0)
    limit = timedelta(seconds=7)
    named = group.split_group([0], limit, group_name="first", group_desc="one")
    assert (named is None) == (rank > 0)
    if named:
        assert (named.group_name, named.group_desc) == ("first", "one")
        assert named.options._timeout == limit
    for wrong in ([], [0, 0], [0, ranks], [-1]):
        with pytest.raises(ValueError, match="distinct ranks"):
            group.split_group(wrong)
    dist.barrier()


def each_once(rank: int, ranks: int) -> list[torch.Tensor]:
    """Collectives, and what they gave."""
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    reduced, shared, got = own(rank, torch.float32), own(rank, torch.float32), torch.empty(6)
    dist.all_reduce(reduced)
    dist.broadcast(shared, 0)
    parts = [torch.empty(6) for _ in range(ranks)]
    dist.all_gather(parts, own(rank, torch.float32))
    everyone = torch.empty(ranks, 6)
    everyone[rank] = rank
    dist.all_gather_single(everyone, everyone[rank])
    output = torch.empty(6)
    dist.reduce_scatter(output, parts)
    dist.all_to_all_single(torch.empty(ranks), torch.ones(ranks))
    works = [dist.isend(reduced, following), dist.irecv(got, before)]
    for work in works:
        work.wait()
    dist.barrier()
    return [reduced, shared, *parts, everyone, output, got]


def observed(rank: int, ranks: int) -> None:
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.profiler import ProfilerActivity, profile

    plain = each_once(rank, ranks)
    with CommDebugMode() as mode:
        debugged = each_once(rank, ranks)
    counts = {str(name): count for name, count in mode.get_comm_counts().items()}
    names = "allreduce_ broadcast_ allgather_ _allgather_base_ reduce_scatter_ alltoall_base_"
    wanted = {f"c10d.{name}": 1 for name in names.split()}
    assert counts == wanted, counts
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        profiles = each_once(rank, ranks)
    events = {event.key: event.count for event in profiled.key_averages()}
    for name in ("c10d::allreduce_", "torsh:allreduce", "torsh:barrier", "torsh:send"):
        assert events[name] == 1
    for results in (debugged, profiles):
        for result, wanted in zip(results, plain, strict=True):
            same(result, wanted)
    with CommDebugMode() as mode:
        sparse(rank, ranks)


def facts(rank: int, ranks: int) -> None:
    group = dist.group.WORLD
    assert dist.get_backend() == "torsh"
    assert (group.rank(), group.size(), group.name()) == (rank, ranks, "torsh")
    assert dist.get_process_group_ranks(group) == list(range(ranks))
    assert group.group_name
    assert group.group_desc == "default_pg"
    group.monitored_barrier(timedelta(seconds=9))
    dist.monitored_barrier(timeout=timedelta(seconds=9))
    dist.monitored_barrier(group, wait_all_ranks=True)
    group._set_sequence_number_for_group()
    dist.barrier()
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    assert group._get_sequence_number_for_group() == 2
    limit = timedelta(seconds=5)
    dist.distributed_c10d._set_pg_timeout(limit)
    assert group.options._timeout == limit
