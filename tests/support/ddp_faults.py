"""DistributedDataParallel in trouble, and odd models; each function is one rank's part."""

from __future__ import annotations

from typing import Any

import torch
from support.ddp_training import wrapped
from torch import nn

import torsh_runtime as tr


class Two(nn.Module):
    """Two layers, of which `forward` uses what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor, second: bool = True) -> torch.Tensor:
        hidden = self.first(inputs)
        return self.second(hidden) if second else hidden


def raised(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def mean(rank: int, ranks: int) -> Any:
    """The first layer's gradient for inputs of 1.5, without a wrapper."""
    model = wrapped(Two).module
    model(torch.full((2, 3), 1.5)).sum().backward()
    return model.first.weight.grad


def unused(rank: int, ranks: int) -> Any:
    """Rank 1 leaves a layer out once; then all goes on."""
    model = wrapped(Two)
    text = raised(lambda: model(torch.ones(2, 3), second=rank != 1).sum().backward())
    model.zero_grad()
    model(torch.full((2, 3), 1.0 + rank)).sum().backward()
    return text, gradients(model)["module.first.weight"]


def not_finite(rank: int, ranks: int) -> Any:
    model = wrapped(Two, check_nan=True)
    inputs = torch.full((2, 3), float("nan") if rank == ranks - 1 else 1.0)
    return raised(lambda: model(inputs).sum().backward())


def reshaped(rank: int, ranks: int) -> Any:
    model = wrapped(Two)
    if rank == 1:
        with torch.no_grad():
            model.module.second.weight.data = torch.ones(5, 3)
            model.module.second.bias.data = torch.ones(5)
    return raised(lambda: model(torch.ones(2, 3)).sum().backward())


def again(rank: int, ranks: int) -> Any:
    """Two reentrant checkpoints share a layer."""
    from torch.utils.checkpoint import checkpoint

    class Shared(Two):
        def forward(self, inputs: torch.Tensor, second: bool = True) -> torch.Tensor:
            hidden = self.first(inputs)
            for _ in range(2):
                hidden = checkpoint(self.second, hidden, use_reentrant=True)
            return hidden

    texts = [raised(lambda: wrapped(Shared)(torch.ones(2, 3)).sum().backward())]
    model = wrapped(Shared, static_graph=True)
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
    one = wrapped(Two).module
    hidden = one.second(one.second(one.first(torch.ones(2, 3))))
    hidden.sum().backward()
    torch.testing.assert_close(model.module.second.weight.grad, one.second.weight.grad)
    return texts[0]


def static_changes(rank: int, ranks: int) -> Any:
    model = wrapped(Two, static_graph=True)
    model(torch.ones(2, 3)).sum().backward()
    return raised(lambda: model(torch.ones(2, 3), second=rank != 1).sum().backward())


def twice(rank: int, ranks: int) -> Any:
    """A graph is gone after its backward pass, on all ranks; one that was kept serves again."""
    model = wrapped(Two)
    loss = model(torch.full((2, 3), 1.0 + rank)).sum()
    loss.backward(retain_graph=True)
    once = gradients(model)
    loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, 2 * once[name])
    return raised(loss.backward)


def interrupted(rank: int, ranks: int) -> Any:
    """A backward pass that all ranks break off; the next one counts as if that had not been."""

    def fail(_: Any) -> None:
        raise ValueError("no")

    model = wrapped(Two)
    hidden = model(torch.ones(2, 3))
    hidden.register_hook(fail)
    text = raised(hidden.sum().backward)
    model.zero_grad()
    model(torch.full((2, 3), 1.0 + rank)).sum().backward()
    return text, gradients(model)["module.first.weight"]


def one_breaks_off(rank: int, ranks: int) -> Any:
    """Rank 1 alone breaks a backward pass off and goes on; all hear of it once."""

    def fail(_: Any) -> None:
        raise ValueError("no")

    model = wrapped(Two)
    if rank == 1:
        hidden = model(torch.ones(2, 3))
        hidden.register_hook(fail)
        raised(hidden.sum().backward)
        model.zero_grad()
    text = raised(lambda: model(torch.ones(2, 3)).sum().backward())
    model.zero_grad()
    model(torch.full((2, 3), 1.0 + rank)).sum().backward()
    return text, gradients(model)["module.first.weight"]


def from_meta(rank: int, ranks: int) -> Any:
    """A model that was made without memory, and has values on rank 0 alone."""
    with torch.device("meta"):
        bare = Two()
    bare.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in bare.parameters():
            parameter.fill_(3.0 if rank == 0 else float("nan"))
    model = tr.DistributedDataParallel(bare)
    model(torch.ones(2, 3)).sum().backward()
    return {float(each) for parameter in model.parameters() for each in parameter.flatten()}


def no_parameters(rank: int, ranks: int) -> Any:
    return raised(lambda: tr.DistributedDataParallel(nn.ReLU()))


def other_models(rank: int, ranks: int) -> Any:
    odd = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3 if rank == 1 else 2))
    longer = nn.Sequential(*(nn.Linear(2, 2) for _ in range(2 + (rank == 1))))
    return [raised(lambda m=model: tr.DistributedDataParallel(m)) for model in (odd, longer)]


def other_options(rank: int, ranks: int) -> Any:
    """What is said when rank 1 gives an option of its own; then those that ranks may have so."""
    texts = []
    for name, value in OTHER_OPTIONS.items():
        own = {name: value} if rank == 1 else {}
        texts.append(raised(lambda own=own: wrapped(Two, **own)))
    model = wrapped(Two, gradient_as_bucket_view=rank == 1, check_nan=rank == 1)
    model(torch.full((2, 3), 1.0 + rank)).sum().backward()
    return texts, gradients(model)["module.first.weight"]


OTHER_OPTIONS = {
    "bucket_size_mb": 1.0,
    "gradient_accumulation_steps": 2,
    "backward_passes_per_step": 2,
    "overlap_communication": True,
    "gradient_compression": "fp16",
    "find_unused_parameters": True,
    "static_graph": True,
    "reduce_dtype": "float64",
    "broadcast_buffers": False,
}


def other_options_unsynced(rank: int, ranks: int) -> Any:
    """The same of wrappers that compare nothing when they are made, and of one that does not."""
    find, sync = (
        {"find_unused_parameters": rank == 1, "init_sync": False},
        {"init_sync": not rank},
    )
    texts = []
    for own in (find, sync):

        def step(own: dict[str, Any] = own) -> None:
            wrapped(Two, **own)(torch.ones(2, 3)).sum().backward()

        texts.append(raised(step))
    return texts


def other_joins(rank: int, ranks: int) -> Any:
    model = wrapped(Two)

    def loop() -> None:
        with model.join(divide_by_initial_world_size=rank == 0):
            model(torch.ones(2, 3)).sum().backward()

    return raised(loop)


def other_hooks(rank: int, ranks: int) -> Any:
    """Hooks that call the same collective, and on rank 1 something else before; a hook on rank 1
    alone."""

    def average(state: Any, bucket: Any) -> Any:
        return tr.all_reduce(bucket.array, op=tr.ReduceOp.AVG, async_op=True)

    def scaled(state: Any, bucket: Any) -> Any:
        bucket.buffer().mul_(2)
        return average(state, bucket)

    texts = []
    for hooks in ((average, scaled), (None, average)):
        model, hook = wrapped(Two), hooks[rank]
        if hook is not None:
            model.register_comm_hook(None, hook)
        texts.append(raised(lambda m=model: m(torch.ones(2, 3)).sum().backward()))
    return texts


def joins_of_two_models(rank: int, ranks: int) -> Any:
    first, second = wrapped(Two), wrapped(lambda: nn.Linear(3, 2))

    def loop() -> None:
        with first.join(), second.join():
            for _ in range(1 + rank):
                for model in (first, second):
                    model(torch.ones(2, 3)).sum().backward()

    return raised(loop)


def replaced(rank: int, ranks: int) -> Any:
    """Parameters that are others than those that were wrapped: all of them, and one layer's."""
    whole, part = wrapped(Two), wrapped(Two, find_unused_parameters=True)
    whole.module.load_state_dict(Two().state_dict(), assign=True)
    part.module.second = nn.Linear(3, 3)
    return [raised(m(torch.ones(2, 3)).sum().backward) for m in (whole, part)]


def sparse_apart(rank: int, ranks: int) -> Any:
    """Sparse gradients that are no views stay sparse; those of one process."""
    table = {"num_embeddings": 5, "embedding_dim": 2, "sparse": True}
    model = wrapped(lambda: nn.Embedding(**table), gradient_as_bucket_view=False)
    for _ in range(2):
        model.zero_grad()
        model(torch.tensor([0, rank + 1, 4])).square().sum().backward()
    alone = wrapped(lambda: nn.Embedding(**table)).module
    for each in range(ranks):
        alone(torch.tensor([0, each + 1, 4])).square().sum().backward()
    torch.testing.assert_close(
        model.module.weight.grad.to_dense() * ranks, alone.weight.grad.to_dense()
    )
    return model.module.weight.grad.is_sparse


def unknown_options(rank: int, ranks: int) -> Any:
    return [
        raised(lambda: tr.DistributedDataParallel(nn.Linear(2, 2), bucket_cap=3)),
        raised(lambda: tr.DistributedDataParallel(nn.Linear(2, 2), bucket_size_mb=0)),
        raised(lambda: tr.DistributedDataParallel(nn.Linear(2, 2), reduce_dtype="float33")),
        raised(lambda: tr.DistributedDataParallel(nn.Linear(2, 2), [0, 1])),
        raised(lambda: tr.DistributedDataParallel("a model")),
        raised(lambda: tr.DistributedDataParallel(nn.Linear(2, 2), process_group=3)),
        raised(lambda: tr.DistributedDataParallel(nn.Linear(2, 2, device="meta"))),
    ]


def dtypes_and_layouts(rank: int, ranks: int) -> Any:
    """A model of several dtypes, memory formats and buffers that are no floats."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.short = nn.Linear(4, 4).bfloat16()
            self.long = nn.Linear(4, 4).double()
            self.image = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
            self.scalar = nn.Parameter(torch.tensor(2.0))
            self.number = nn.Parameter(torch.tensor(3), requires_grad=False)
            self.empty = nn.Parameter(torch.ones(0, 3))
            self.table = nn.Embedding(5, 4, sparse=True)
            self.register_buffer("count", torch.tensor(rank))
            self.register_buffer("none", None)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            rows = self.short(inputs.bfloat16()).double() + self.long(inputs.double())
            looked = self.table(torch.tensor([rank, 4]))
            image = self.image(inputs.reshape(1, 2, 4, 4)).sum()
            return rows.sum() * self.scalar + image + looked.sum() * 2 + self.empty.sum()

    model = wrapped(Mixed)
    model(torch.full((8, 4), 1.0 + rank)).backward()
    expected: dict[str, torch.Tensor] = {}
    for each in range(ranks):
        torch.manual_seed(0)
        alone = Mixed()
        alone.load_state_dict(model.module.state_dict())
        rank = each
        alone(torch.full((8, 4), 1.0 + each)).backward()
        for name, parameter in alone.named_parameters():
            if parameter.grad is not None:
                grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                expected[name] = expected.get(name, 0) + grad.double() / ranks
    found = {name: p.grad for name, p in model.module.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        loose = 1e-1 if gradient.dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(gradient.double(), expected[name], rtol=loose, atol=1e-5)
    assert model.module.image.weight.grad.is_contiguous(memory_format=torch.channels_last)
    return int(model.module.count)


def several(rank: int, ranks: int) -> Any:
    """Two models in one loss, over different groups."""
    pairs, _ = tr.new_subgroups(2)
    first, second = wrapped(Two), wrapped(Two, process_group=pairs)
    inputs = torch.full((2, 3), 1.0 + rank)
    (first(inputs) + second(inputs)).sum().backward()
    return gradients(first)["module.second.bias"], gradients(second)["module.first.weight"]


def hooks(rank: int, ranks: int) -> Any:
    """A hook of one's own, which sees what torch's see, and one of torch's."""
    seen = []

    def own(state: Any, bucket: Any) -> Any:
        assert bucket.buffer().numel() == sum(each.numel() for each in bucket.gradients())
        assert [g.shape for g in bucket.gradients()] == [p.shape for p in bucket.parameters()]
        seen.append((state, bucket.index(), bucket.is_last(), bucket.names))
        bucket.buffer().mul_(3)
        return tr.all_reduce(bucket.array, op=tr.ReduceOp.AVG, async_op=True)

    model = wrapped(Two, bucket_size_mb=4e-5)
    model.register_comm_hook("state", own)
    model(torch.full((2, 3), 1.0 + rank)).sum().backward()
    return seen, gradients(model)["module.second.bias"]


def returned(rank: int, ranks: int) -> Any:
    """A hook whose future has another tensor as its value, as torch's compressing ones."""

    def own(state: Any, bucket: Any) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([torch.full_like(bucket.buffer(), 7)])
        return future

    model = wrapped(Two)
    model.register_comm_hook(None, own)
    model(torch.ones(2, 3)).sum().backward()
    return {float(value) for each in gradients(model).values() for value in each.flatten()}


def buffers(rank: int, ranks: int) -> Any:
    """Rank 0's go to all before a forward pass in training, but not in no_sync and eval."""
    model = wrapped(lambda: nn.BatchNorm1d(2))
    means = []
    for mode in ("train", "no_sync", "eval"):
        model.train(mode != "eval")
        model.module.running_mean.fill_(rank + 1.0)
        if mode == "no_sync":
            with model.no_sync():
                model(torch.zeros(2, 2))
        else:
            model(torch.zeros(2, 2))
        means.append(float(model.module.running_mean[0]))
    return means


def one_rank_leaves(rank: int, ranks: int) -> Any:
    """A rank with fewer batches, which does not join."""
    model = wrapped(Two)

    def step() -> None:
        model(torch.ones(2, 3)).sum().backward()

    step()
    return raised(step) if rank == 0 else None


def inside_a_checkpoint(rank: int, ranks: int) -> Any:
    """A wrapper whose forward pass is computed again in the backward pass, in both ways."""
    from torch.utils.checkpoint import checkpoint

    found = []
    for reentrant in (False, True):
        model = wrapped(Two)
        inputs = torch.full((2, 3), 1.0 + rank, requires_grad=True)
        checkpoint(model, inputs, use_reentrant=reentrant).sum().backward()
        found.append(gradients(model)["module.first.weight"])
    return found


def copied(rank: int, ranks: int) -> Any:
    """A wrapper that was pickled, and a copy of one, average as it does; one of a group is not."""
    import copy
    import pickle

    model = wrapped(Two, check_nan=True)
    found = []
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):  # noqa: S301
        other(torch.full((2, 3), 1.0 + rank)).sum().backward()
        found.append(gradients(other)["module.first.weight"])
        assert "not finite" in raised(other(torch.full((2, 3), float("inf"))).sum().backward)
    compressor = tr.compression.TopK(0.5)
    model = wrapped(Two, gradient_compression=compressor)
    model(torch.ones(2, 3)).sum().backward()
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):  # noqa: S301
        other(torch.ones(2, 3)).sum().backward()
    assert compressor.stats().steps == 1  # a copy has its own
    pairs, _ = tr.new_subgroups(2)
    return found, raised(lambda: pickle.dumps(wrapped(Two, process_group=pairs)))


def moved_gradients(rank: int, ranks: int) -> Any:
    """`.grad.data` is given other memory, by hand and by a cast of the model."""
    model, found = wrapped(Two), []
    inputs = torch.full((2, 3), 1.0 + rank)
    for set_to_none in (True, False, True):
        model.zero_grad(set_to_none=set_to_none)
        model(inputs).sum().backward()
        found.append(gradients(model)["module.first.weight"])
        for parameter in model.parameters():
            parameter.grad.data = parameter.grad.data * 3
    model.double().zero_grad(set_to_none=False)
    model(inputs.double()).sum().backward()
    return [*found, gradients(model)["module.first.weight"].float()]


class Hidden:
    """Outputs of a kind that nobody knows."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Aside(Two):
    """Returns what nobody looks into, or keeps a part of the loss to itself."""

    def __init__(self, hides: bool) -> None:
        super().__init__()
        self.hides = hides

    def forward(self, inputs: torch.Tensor, second: bool = True) -> Any:
        if self.hides:
            return Hidden(super().forward(inputs))
        hidden = self.first(inputs)
        self.kept = self.second(hidden).sum()
        return hidden


def unseen(rank: int, ranks: int) -> Any:
    """Gradients that do not come by way of the outputs, where unused parameters are looked for."""
    inputs = torch.full((2, 3), 1.0 + rank)
    model = wrapped(lambda: Aside(True), find_unused_parameters=True)
    model(inputs).value.sum().backward()
    aside = wrapped(lambda: Aside(False), find_unused_parameters=True)
    text = raised(lambda: (aside(inputs).sum() + aside.module.kept).backward())
    return text, gradients(model)["module.first.weight"]


def wrapped_anew(rank: int, ranks: int) -> Any:
    """What a wrapper has put on a model is gone with it."""
    model = wrapped(Two)
    model(torch.ones(2, 3)).sum().backward()
    model.zero_grad()
    model = tr.DistributedDataParallel(model.module)
    model(torch.full((2, 3), 1.0 + rank)).sum().backward()
    weight: Any = model.module.first.weight
    return len(weight._post_accumulate_grad_hooks), gradients(model)["module.first.weight"]


def interrupted_then_unused(rank: int, ranks: int) -> Any:
    """What came in a pass that was broken off counts for none."""

    def fail(_: Any) -> None:
        raise ValueError("no")

    model = wrapped(Two)
    hook = model.module.first.weight.register_hook(fail)
    assert raised(model(torch.ones(2, 3)).sum().backward) == "ValueError: no"
    hook.remove()
    model.zero_grad()
    return raised(model(torch.ones(2, 3), second=False).sum().backward)


def penalty(rank: int, ranks: int) -> Any:
    """A gradient by the inputs is a part of the loss; the same without a wrapper."""
    found = []
    for model in (wrapped(Two), wrapped(Two).module):
        whole = [1.0 + each for each in range(ranks)]
        for value in [1.0 + rank] if hasattr(model, "no_sync") else whole:
            inputs = torch.full((2, 3), value, requires_grad=True)
            outputs = model(inputs).tanh().sum()
            (slope,) = torch.autograd.grad(outputs, inputs, create_graph=True)
            (outputs + slope.square().sum()).backward()
        found.append(next(model.parameters()).grad)
    torch.testing.assert_close(found[0] * ranks, found[1])


def by_the_outputs(rank: int, ranks: int) -> Any:
    """A gradient by the wrapper's own outputs, before the backward pass and between two."""
    model = wrapped(Two, gradient_accumulation_steps=2)
    for _ in range(2):
        outputs = model(torch.full((2, 3), 1.0 + rank))
        (slope,) = torch.autograd.grad(outputs.square().sum(), outputs, retain_graph=True)
        outputs.backward(torch.full_like(slope, 0.5))
    return gradients(model)["module.first.weight"]


def complex_parameters(rank: int, ranks: int) -> Any:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return (self.turn * inputs).imag.sum()

    model = wrapped(Turned, reduce_dtype="float64")
    model(torch.tensor([1.0 + rank, 2.0], dtype=torch.complex64)).backward()
    return model.module.turn.grad.tolist()


def unfrozen(rank: int, ranks: int) -> Any:
    model = wrapped(Two)
    model.module.second.requires_grad_(False)
    model = tr.DistributedDataParallel(model.module)
    model.module.second.requires_grad_(True)
    return raised(model(torch.ones(2, 3)).sum().backward)


def returns_a_parameter(rank: int, ranks: int) -> Any:
    class Returning(Two):
        def forward(self, inputs: torch.Tensor, second: bool = True) -> Any:
            return super().forward(inputs), self.first.weight

    model = wrapped(Returning)
    for _ in range(3):
        model(torch.ones(2, 3))[0].sum().backward()
    return len(model.module.first.weight._backward_hooks or ())


def second_hook(rank: int, ranks: int) -> Any:
    model = wrapped(Two, gradient_compression="fp16")
    return raised(lambda: model.register_comm_hook(None, tr.compression.TopK(0.1)))
