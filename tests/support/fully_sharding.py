"""Programs that shard modules in place by fully_shard(); each function is one rank's part."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from support.ddp_faults import raised
from support.fsdp_training import as_on_gpus, without_common_memory
from torch import nn
from torch.nn import functional

import torsh_runtime as tr
from torsh_runtime import ProcessGroup, fully_shard

WORDS, WIDTH, LENGTH, ROWS = 17, 12, 5, 2
State = dict[str, torch.Tensor]


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attended = nn.Linear(WIDTH, 3 * WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        parts = self.attended(self.first(hidden)).chunk(3, dim=-1)
        hidden = hidden + functional.scaled_dot_product_attention(*parts, is_causal=True)
        return hidden + self.narrow(functional.gelu(self.wide(self.second(hidden))))

    def reset_parameters(self) -> None:
        for each in (self.first, self.second, self.attended, self.wide, self.narrow):
            each.reset_parameters()


class Transformer(nn.Module):
    """Embeddings, blocks and a head, which may have the embedding's weight."""

    def __init__(self, ties: bool = True) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if ties:
            self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))

    def reset_parameters(self) -> None:
        for each in (self.words, self.places, *self.blocks, self.norm):
            each.reset_parameters()
        nn.init.xavier_normal_(self.head.weight)  # by what its shape is


def made(seed: int = 0, ties: bool = True) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(ties)


def shard(model: Any, **options: Any) -> Any:
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def batch(step: int, ranks: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, WORDS, (ROWS * ranks, LENGTH), generator=generator)


def loss_of(model: Any, words: torch.Tensor) -> torch.Tensor:
    logits = model(words)
    logits = getattr(logits, "logits", logits)
    return functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def train(model: Any, share: slice, ranks: int, passes: int = 1) -> State:
    """The whole state after some steps on these rows of the batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    for step in range(5):
        for number in range(passes):
            if isinstance(model, tr.FSDPModule):
                model.set_requires_gradient_sync(number == passes - 1)
            words = batch(step * passes + number, ranks)[share]
            (loss_of(model, words) / passes).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict())


def tutorial(rank: int | None) -> nn.Module:
    """A model from the meta device, with explicit prefetching."""
    if rank is None:
        model = made()
        torch.manual_seed(3)
        model.reset_parameters()
        return model
    with torch.device("meta"):
        model = shard(Transformer())
    for block, following in itertools.pairwise(model.blocks):
        block.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([block])
    model.to_empty(device="cpu")
    torch.manual_seed(3 + rank)  # rank 0's values are everyone's
    model.reset_parameters()
    model.unshard()
    assert model.head.weight.shape == (WORDS, WIDTH)
    return model


def pretraining(rank: int | None) -> nn.Module:
    """Every part is sharded on its own; norm and head together, which stay whole."""
    model = made(rank or 0, ties=False)
    if rank is not None:
        fully_shard(model.words)
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=True)
        fully_shard([model.norm, model.head], reshard_after_forward=False)
        fully_shard(model)
    return model


def llama(rank: int | None) -> nn.Module:
    """A model of transformers, by the class of its layers."""
    from support.lean_transformers import hf
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    config = hf.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    torch.manual_seed(rank or 0)
    model = hf.LlamaForCausalLM(config)
    if rank is not None:
        for module in model.modules():
            if isinstance(module, LlamaDecoderLayer):
                fully_shard(module)
        fully_shard(model)
    return model


def small(rank: int | None) -> nn.Module:
    """With tied weights, in the usual way."""
    return made() if rank is None else shard(made(rank))


def blocks_only(rank: int | None) -> nn.Module:
    """The parameters outside of blocks are no one's, and their gradients every rank's own."""
    model = made()
    for each in (model.words, model.places, model.norm):
        each.requires_grad_(False)
    if rank is not None:
        for block in model.blocks:
            fully_shard(block)
    return model


def kept_whole(rank: int | None) -> nn.Module:
    """Parameters stay whole from forward passes to backward passes."""
    return made() if rank is None else shard(made(rank), reshard_after_forward=False)


def kept_by_two(rank: int | None) -> nn.Module:
    """Pairs of ranks keep parameters from forward passes to backward passes."""
    return made() if rank is None else shard(made(rank), reshard_after_forward=2)


def parametrized(rank: int | None) -> nn.Module:
    """Weights that are computed from others, of which fewer rows than ranks may be."""
    model = made(ties=False)
    torch.manual_seed(5)
    nn.utils.parametrizations.weight_norm(model.head, dim=1)
    nn.utils.parametrizations.spectral_norm(model.words)
    return model if rank is None else shard(model)


PROGRAMS: dict[str, Callable[[int | None], nn.Module]] = {
    each.__name__: each
    for each in (
        *(tutorial, pretraining, llama, small, blocks_only, kept_whole, kept_by_two),
        parametrized,
    )
}
PASSES = {"small": 3}
"""Passes of a step that accumulate gradients."""


def _prepare() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)


def trained(rank: int, name: str, ranks: int, gathers: bool = False) -> State:
    """By this rank beside the others."""
    _prepare()
    with without_common_memory(gathers):
        model = PROGRAMS[name](rank)
        return train(model, slice(ROWS * rank, ROWS * (rank + 1)), ranks, PASSES.get(name, 1))


def alone(name: str, ranks: int) -> State:
    """By one process on whole batches."""
    before = torch.get_default_dtype()
    _prepare()
    try:
        return train(PROGRAMS[name](None), slice(None), ranks, PASSES.get(name, 1))
    finally:
        torch.set_default_dtype(before)


def hybrid(rank: int) -> State:
    """Sharded over two ranks and replicated over two more."""
    _prepare()
    mesh = tr.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = shard(made(rank), mesh=mesh)
    return train(model, slice(ROWS * rank, ROWS * (rank + 1)), 4)


def hybrid_by_turns(rank: int) -> list[bool]:
    """Gradients that are averaged over replicas in the last of two passes only."""
    _prepare()
    mesh = tr.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    found = []
    for by_turns in (False, True):
        model = shard(made(), mesh=mesh)
        for number in range(2):
            model.set_requires_all_reduce(number == 1 or not by_turns)
            loss_of(model, batch(number, 4)[ROWS * rank : ROWS * (rank + 1)]).backward()
        found.append([each.grad.clone() for each in model.parameters()])
    return [torch.allclose(*each, rtol=1e-12, atol=1e-14) for each in zip(*found, strict=True)]


def refusals(rank: int) -> dict[str, str]:
    """What takes parts for whole parameters, or shards in the wrong order."""
    model = shard(made())
    outer = made()
    tied: Any = made()
    fully_shard(outer)
    fully_shard(tied.words)
    partly: Any = made()
    fully_shard(partly.blocks[0])
    with torch.device("meta"):
        empty = shard(Transformer())
    calls: dict[str, Callable[[], Any]] = {
        "twice": lambda: fully_shard(model),
        "within": lambda: fully_shard(outer.blocks[0]),
        "tied": lambda: fully_shard(tied),
        "number": lambda: fully_shard(made(), reshard_after_forward=3),
        "numbers": lambda: fully_shard(made(), reshard_after_forward=rank + 1),
        "policy": lambda: fully_shard(made(), mp_policy=tr.MixedPrecision()),  # type: ignore[arg-type]
        "deepcopy": lambda: copy.deepcopy(model),
        "deepcopy of a layer": lambda: copy.deepcopy(model.blocks[0].wide),
        "pickle": lambda: pickle.dumps(model),
        "AveragedModel": lambda: torch.optim.swa_utils.AveragedModel(model),
        "dtype": lambda: model.to(torch.bfloat16),
        "assign": lambda: model.load_state_dict(made().state_dict(), assign=True),
        "state of a layer": lambda: model.blocks[0].wide.state_dict(),
        "state around": lambda: partly.load_state_dict(made().state_dict()),
        "no values": lambda: empty(batch(0, 1)),
        "prefetch": lambda: model.set_modules_to_forward_prefetch([made()]),
        "owners": lambda: tr.DistributedOptimizer(model.parameters(), torch.optim.SGD, model=model),
    }
    return {name: raised(call) for name, call in calls.items()}


def refused_by_others(rank: int) -> dict[str, str]:
    """What other parts would do with a model that is sharded in place."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = shard(made())
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of(model, batch(0, 1)).backward()
    optimizer.step()
    stage = nn.Linear(2, 2)
    calls: dict[str, Callable[[], Any]] = {
        "optimizer's state": lambda: get_optimizer_state_dict(model, optimizer),
        "pipeline": lambda: tr.PipelineParallel([stage, nn.Linear(2, 2)], 2, wrap=fully_shard),
    }
    return {name: raised(call) for name, call in calls.items()}


def on_torchs_mesh(rank: int, folder: Path) -> State:
    """Sharded over a mesh of torch.distributed, whose groups are torsh's."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    _prepare()
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("torsh", store=store, rank=rank, world_size=2)
    try:
        model = shard(made(rank), mesh=init_device_mesh("cpu", (2,)))
        return train(model, slice(ROWS * rank, ROWS * (rank + 1)), 2)
    finally:
        dist.destroy_process_group()


def same_object(rank: int) -> dict[str, bool]:
    """What stays as it was when a model is sharded in place."""
    model = made()
    names = [name for name, _ in model.named_parameters()]
    keys, parameters = [*model.state_dict()], [*model.parameters()]
    same = shard(model, offload_policy=tr.CPUOffloadPolicy())
    part = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(part)
    return {
        "object": same is model,
        "class": isinstance(model, Transformer) and isinstance(model, tr.FSDPModule),
        "no module": not hasattr(model, "module"),
        "names": [name for name, _ in model.named_parameters()] == names,
        "keys": [*model.state_dict()] == keys,
        "parameters": all(map(lambda a, b: a is b, model.parameters(), parameters)),
        "tied": model.head.weight is model.words.weight,
        "slice": type(part[:1]) is nn.Sequential,
        "moved": model.to("cpu") is model and model.float() is model,
    }


def saved(rank: int, directory: Path) -> list[float]:
    """Differences after a checkpoint, and after whole states in both directions."""
    model = shard(made(1))
    tr.checkpoint.Checkpointer(directory).save(1, {"model": model})
    other: Any = shard(made(2))
    tr.checkpoint.Checkpointer(directory).load({"model": other})
    third: Any = made(3)
    third.load_state_dict(other.state_dict())
    with torch.device("meta"):
        last = shard(Transformer())
    last.load_state_dict(third.state_dict())
    whole = tr.whole_state_dict(last)
    found = [*differences(third.state_dict(), made(1).state_dict())]
    return found + ([*differences(whole, made(1).state_dict())] if rank == 0 else [])


def differences(state: State, other: State) -> list[float]:
    assert list(state) == list(other)
    return [float((state[name] - other[name]).abs().max()) for name in state]


def shown(rank: int, gathers: bool) -> list[bool]:
    """Parameters are whole between unshard() and reshard(), and parts around that."""
    with without_common_memory(gathers):
        model, whole = shard(made()), made()
        parts = [each.shape for each in model.blocks[1].parameters()]
        handle = model.blocks[1].unshard(async_op=True)
        handle.wait()
        pairs = zip(model.blocks[1].parameters(), whole.blocks[1].parameters(), strict=True)
        found = [torch.equal(*pair) for pair in pairs]
        model.blocks[1].reshard()
        return [*found, [each.shape for each in model.blocks[1].parameters()] == parts]


def hidden(rank: int, gathers: bool) -> list[Any]:
    """What unshard() raises while there are gradients; and the gradients of a pass after that,
    which are its own where zero_grad() has dropped the former ones."""
    with without_common_memory(gathers):
        model: Any = fully_shard(nn.Linear(4, 4, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def gradient() -> float:
            model(torch.ones(2, 4)).sum().backward()
            return float(model.weight.grad.max())

        gradient()
        texts = [raised(model.unshard), raised(lambda: model.unshard(async_op=True).wait())]
        optimizer.zero_grad()
        model.unshard()
        optimizer.zero_grad()
        once = gradient()
        model.unshard(async_op=True)
        optimizer.zero_grad()
        return [*texts, once, gradient()]


def precise(rank: int) -> dict[str, Any]:
    """Dtypes that a policy selects, where they are seen; and that of a gradient."""
    seen: dict[str, Any] = {}
    policy = tr.MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].register_forward_hook(
        lambda m, i, o: seen.update(inner=o.dtype, weight=m.weight.dtype)
    )
    fully_shard(model[1], mp_policy=tr.MixedPrecisionPolicy())
    fully_shard(model, mp_policy=policy)
    model[1].register_forward_pre_hook(lambda m, i: seen.update(second=m.weight.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        out = model(torch.ones(2, 4))
    out.sum().backward()
    gradient = model[0].weight.grad
    uncast = nn.Linear(4, 4)
    fully_shard(uncast, mp_policy=tr.MixedPrecisionPolicy("bfloat16", cast_forward_inputs=False))
    error = raised(lambda: uncast(torch.ones(2, 4)))
    return seen | {"output": out.dtype, "gradient": gradient.dtype, "uncast": error}


def ignored(rank: int) -> tuple[bool, float, bool]:
    """Whether an ignored parameter stayed, its gradient there, and whether others are averaged."""
    torch.manual_seed(rank)
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    own = model[0].weight.detach().clone()
    fully_shard(model, ignored_params={model[0].weight})
    (model(torch.full((1, 3), rank + 1.0)).sum()).backward()
    return torch.equal(model[0].weight, own), float(model[0].weight.grad.abs().sum()), bool(rank)


class Experts(nn.Module):
    """Each rank calls another expert, which all are in one unit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, inputs: torch.Tensor, *numbers: int) -> torch.Tensor:
        hidden = self.gate(inputs)
        return sum((self.experts[number](hidden) for number in numbers), hidden)


def unused(rank: int, gathers: bool, spelling: str) -> tuple[State, State, bool]:
    """Averaged gradients where ranks call different experts, what they should be, and whether the
    expert that nobody calls has none."""
    options: Any = {"auto_wrap_policy": tr.NoAutoWrap(), "min_num_params": 0}
    inputs, expected = torch.arange(8.0).view(2, 1, 4), Experts()
    (expected(inputs[0], 0) + expected(inputs[1], 1)).sum().div(2).backward()
    with without_common_memory(gathers):
        model: Any = Experts()
        if spelling == "function":
            fully_shard(model)
            model.set_reduce_scatter_unused_params(True)
        else:
            model = tr.FullyShardedDataParallel(model, find_unused_parameters=True, **options)
        for _ in range(2):
            model.zero_grad()
            model(inputs[rank], rank).sum().backward()
        bare = getattr(model, "module", model)
        is_none = bare.experts[2].weight.grad is None
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        state = model.state_dict()
    start = Experts().state_dict()
    gradients = {name: start[name] - value for name, value in state.items()}
    named = dict(expected.named_parameters())
    wanted = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named.items()}
    return gradients, wanted, is_none


def by_method(rank: int) -> list[float]:
    """Outputs and gradients of registered methods, of the model and of a module in it."""
    _prepare()
    model, whole = shard(made()), made()
    for each, kind in ((model, Transformer), (model.blocks[1], Block)):
        vars(each)["encode"] = kind.forward.__get__(each)
        tr.register_fsdp_forward_method(each, "encode")
    words, hidden = batch(0, 1), torch.ones(2, LENGTH, WIDTH)
    found = []
    for call, other in (
        (lambda: model.encode(words), lambda: whole(words)),
        (lambda: model.blocks[1].encode(hidden), lambda: whole.blocks[1](hidden)),
    ):
        outputs, expected = call(), other()
        outputs.square().sum().backward()
        expected.square().sum().backward()
        found.append(float((outputs - expected).detach().abs().max()))
    norms = [tr.clip_grad_norm_(each, 1.0) for each in (model, whole)]
    return [*found, norms[0] - norms[1]]


def of_nn(rank: int) -> list[float]:
    """The largest difference to one process, of a model of torsh_runtime.nn."""
    import numpy as np

    from torsh_runtime import nn as own

    def model(seed: int) -> Any:
        np.random.seed(seed)
        tr.nn.manual_seed(seed)
        return own.Sequential(own.Linear(4, 6), own.ReLU(), own.Linear(6, 3))

    def trained_by(net: Any, rows: slice) -> list[Any]:
        optimizer = tr.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            inputs = np.random.default_rng(step).normal(size=(4, 4)).astype(np.float32)
            net.zero_grad()
            outputs = net(own.Tensor(inputs[rows]))
            (outputs * outputs).mean().backward()
            optimizer.step()
        return [np.asarray(each.data) for each in net.state_dict().values()]

    alone = trained_by(model(0), slice(None))
    net = model(rank)
    fully_shard(net[0])
    fully_shard(net)
    ours = trained_by(net, slice(2 * rank, 2 * rank + 2))
    return [float(abs(a - b).max()) for a, b in zip(alone, ours, strict=True)]


@contextmanager
def gathers() -> Iterator[list[int]]:
    """Yield a list of the numbers of ranks that values are gathered from in this block."""
    seen: list[int] = []
    with ExitStack() as stack:
        for name in ("all_gather", "all_gather_into_tensor"):
            call = getattr(ProcessGroup, name)

            def spied(group: Any, *given: Any, call: Any = call, **named: Any) -> Any:
                seen.append(group.world_size)
                return call(group, *given, **named)

            stack.enter_context(patch.object(ProcessGroup, name, spied))
        yield seen


def resharded(rank: int, is_on_gpu: bool) -> dict[str, tuple[float, list[int]]]:
    """Return, for values of reshard_after_forward, what ranks have between a forward and a backward
    pass beside their own part, relative to the model, and the numbers of ranks that the backward
    pass gathers from."""
    _prepare()
    found: dict[str, tuple[float, list[int]]] = {}
    for frees in (True, 2, False, 4, 1, None):
        kind = as_on_gpus() if is_on_gpu else nullcontext()
        with without_common_memory(), kind:
            model: Any = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
            size = sum(each.nbytes for each in model.parameters())
            for each in model:
                fully_shard(each, reshard_after_forward=frees)
            model(torch.ones(2, 64)).sum().backward()  # gradients have memory from now on
            before = [each._sharding.memory_stats().current for each in model]
            output = model(torch.ones(2, 64)).sum()
            after = [each._sharding.memory_stats().current for each in model]
            with gathers() as seen:
                output.backward()
            found[str(frees)] = (sum(after) - sum(before)) / size, seen
    return found


def unfinished(rank: int) -> float:
    """What a model of zeros returns whose last forward pass had other values, which pairs of ranks
    have kept for a backward pass that did not come."""
    with without_common_memory():
        model = fully_shard(nn.Linear(64, 64, bias=False), reshard_after_forward=2)
        model(torch.ones(2, 64))
        with torch.no_grad():
            for each in model.parameters():
                each.zero_()
        return float(model(torch.ones(2, 64)).abs().max())


def as_if_on_gpus(body: Callable[..., Any], rank: int) -> Any:
    with as_on_gpus():
        return body(rank)
