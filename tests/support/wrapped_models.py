"""What programs do with models after they are wrapped; each function is one rank's part."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from support.ddp_faults import raised
from support.fsdp_training import without_common_memory
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torsh_runtime as tr

WIDTH, ROWS = 12, 4
EVERY: dict[str, Any] = {"auto_wrap_policy": tr.SizeBasedAutoWrap(50), "min_num_params": 0}
Model = Callable[[], nn.Module]


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 5))


class Tied(nn.Module):
    """Uses the weight of its embedding once more by hand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.inner = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.embed(inputs.abs().mul(9).long() % WIDTH)
        return functional.linear(self.inner(found), self.embed.weight)


class Taken(nn.Module):
    """Goes past the modules that have parameters: calls a convolution's weight, and the modules in
    a Sequential within checkpoints."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2)))
        self.scaled = nn.Linear(WIDTH, WIDTH)
        self.reentrant = reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs.requires_grad_()
        for block in self.blocks:
            hidden = checkpoint(self._computed, block, hidden, use_reentrant=self.reentrant)
        weight = self.scaled.weight / self.scaled.weight.norm(dim=1, keepdim=True)
        return functional.linear(hidden, weight, self.scaled.bias)

    def _computed(self, block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        return torch.tanh(functional.linear(hidden, block.weight, block.bias)) + hidden


class Coder(nn.Module):
    """Has a method that computes with parameters of its own and of other modules."""

    config = "its configuration"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.inner = nn.Linear(WIDTH, WIDTH)

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs) @ self.scale

    def generate(self, inputs: torch.Tensor) -> torch.Tensor:
        return self(self(inputs))

    def penalty(self) -> torch.Tensor:
        return torch.stack([each.square().sum() for each in self.parameters()]).sum()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.encode(inputs))


def batch(step: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(step))


def largest_difference(
    make: Model,
    rank: int,
    wrap: Callable[[nn.Module], Any],
    before_step: Callable[[Any, int], None] = lambda *_: None,
    call: Callable[[Any, torch.Tensor], torch.Tensor] = lambda model, inputs: model(inputs),
) -> float:
    """Between parameters after a training on two ranks and one in a process of its own."""
    alone, model = make(), wrap(make())
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (alone, model)]
    for step in range(4):
        whole = batch(step, 2 * ROWS)
        for each, optimizer, inputs in zip(
            (alone, model), optimizers, (whole, whole.chunk(2)[rank]), strict=True
        ):
            before_step(each, step)
            optimizer.zero_grad()
            call(each, inputs.clone()).square().mean().backward()
            optimizer.step()
    found = model.state_dict()
    return max(float((found[k] - v).abs().max()) for k, v in alone.state_dict().items())


def sharded(model: nn.Module) -> Any:
    return tr.FullyShardedDataParallel(model, **EVERY)


def used_by_others(gathers: bool, rank: int) -> list[float]:
    with without_common_memory(gathers):
        makes: list[Model] = [Tied, Taken, lambda: Taken(reentrant=True)]
        return [largest_difference(make, rank, sharded) for make in makes]


def unfrozen(gathers: bool, rank: int) -> float:
    """A layer that is trained from the third step on."""

    def thaw(model: Any, step: int) -> None:
        inner = model.module if hasattr(model, "module") else model
        inner[0].requires_grad_(step >= 2)

    def make() -> nn.Module:
        return layers().requires_grad_(True)

    def frozen() -> nn.Module:
        model = make()
        model[0].requires_grad_(False)  # type: ignore[operator, index]
        return model

    with without_common_memory(gathers):
        return largest_difference(frozen, rank, sharded, thaw)


def by_methods(gathers: bool, rank: int) -> list[float]:
    """Trained by a method that is registered, and by calls of the module itself."""

    def registered(model: nn.Module) -> Any:
        wrapped = sharded(model)
        for name in ("encode", "penalty"):
            tr.register_fsdp_forward_method(wrapped, name)
        return wrapped

    def encoded(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        return model.encode(inputs)

    def with_a_penalty(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([model(inputs), model.penalty().sqrt().expand(len(inputs), 1)], 1)

    def past_the_wrapper(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        return getattr(model, "module", model)(inputs)

    with without_common_memory(gathers):
        return [
            largest_difference(Coder, rank, registered, call=encoded),
            largest_difference(Coder, rank, registered, call=with_a_penalty),
            largest_difference(Coder, rank, sharded, call=past_the_wrapper),
        ]


def after_a_step(rank: int) -> list[float]:
    """How far calls past the wrapper are from its own, with mixed precision after a step."""
    mixed = tr.MixedPrecision(param_dtype=torch.bfloat16)
    model: Any = tr.FullyShardedDataParallel(Coder(), mixed_precision=mixed, **EVERY)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    inputs = batch(0, ROWS)
    model(inputs).float().square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        found = [model.module(inputs), model.generate(inputs)]
        expected = [model(inputs), model(model(inputs))]
    assert model.config == Coder.config
    return [float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)]


def grouped(rank: int) -> Any:
    """Parameters' numbers of dimensions, before and after."""
    model = layers()
    before = [each.ndim for each in model.parameters()]
    wrapped = sharded(model)
    after = [(each.ndim, each.dim(), len(each.shape)) for each in wrapped.parameters()]
    return before, after


def put_values(rank: int) -> tuple[bool, list[str]]:
    """Values that a program puts in the place of a parameter's own are those that count."""
    model = sharded(layers())
    for each in model.parameters():
        each.data = torch.full_like(each, 0.25)
    state = model.state_dict()
    whole = sharded(layers())
    next(whole.parameters()).data = torch.ones(WIDTH, WIDTH)
    texts = [
        raised(lambda: sharded(layers()).to(torch.float64)),
        raised(lambda: whole(batch(0, ROWS))),
    ]
    return all(bool((each == 0.25).all()) for each in state.values()), texts


def refused(rank: int) -> dict[str, str]:
    """What takes parts for whole parameters."""
    model: Any = sharded(layers())
    state = model.state_dict()
    calls: dict[str, Callable[[], Any]] = {
        "assign": lambda: model.load_state_dict(state, assign=True),
        "deepcopy": lambda: copy.deepcopy(model),
        "deepcopy of the module": lambda: copy.deepcopy(model.module),
        "pickle": lambda: pickle.dumps(model),
        "AveragedModel": lambda: torch.optim.swa_utils.AveragedModel(model),
        "state of the module": lambda: model.module.state_dict(),
        "state of a layer": lambda: model.module[0].state_dict(),
        "sparse": lambda: sharded(nn.Sequential(nn.Embedding(20, 20, sparse=True))),
        "no method": lambda: tr.register_fsdp_forward_method(model, "encode"),
    }
    return {name: raised(call) for name, call in calls.items()}


def layers_added(rank: int) -> list[str]:
    """A layer that comes after wrapping, to FSDP and to DDP; a frozen one is none of theirs."""

    def trained(model: Any) -> str:
        return raised(lambda: model(batch(0, ROWS)).sum().backward())

    texts = []
    for wrap in (sharded, tr.DistributedDataParallel):
        model: Any = wrap(layers())
        model.module.append(nn.Linear(5, 3).requires_grad_(False))
        texts.append(trained(model))
        model.module.append(nn.Linear(3, 2))
        texts.append(trained(model))
    return texts


def experts(rank: int) -> float:
    """A rank calls those without tokens with an empty batch."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            chosen = inputs[:, 0].mul(7).abs().long() % 2 + (inputs[:, 1] > 1).long()
            parts = [expert(inputs[chosen == n]) for n, expert in enumerate(self.experts)]
            return torch.cat(parts)

    return largest_difference(Mixture, rank, sharded)


def scaled(rank: int) -> tuple[list[float], bool]:
    """torch's own GradScaler where one rank's part alone is not finite."""
    model: Any = sharded(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = [each.detach().clone() for each in model.parameters()]
    scales = []
    for is_finite in (False, True):
        optimizer.zero_grad()
        scaler.scale(model(batch(0, ROWS)).mean()).backward()
        first = next(each for each in model.parameters() if each.numel())
        if rank == 1 and not is_finite:
            first.grad.fill_(torch.inf)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if not is_finite:
            same = all(map(torch.equal, before, model.parameters()))
    return scales, same


def generated(rank: int) -> dict[str, str]:
    """Return what is wrong with tokens that an encoder and a decoder with common embeddings
    generate, and the error of calls of the encoder alone."""
    from support.lean_transformers import hf

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    tokens = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": None}
    config = hf.T5Config(vocab_size=48, dropout_rate=0.0, **sizes, **tokens)
    prompt = torch.randint(1, 46, (2, 5), generator=torch.Generator().manual_seed(7))

    def tokens_of(way: str) -> tuple[Any, list[Any]]:
        torch.manual_seed(3)
        plain = hf.T5ForConditionalGeneration(config).double()
        model = SPELLINGS[way](plain) if way else plain
        parameters = [*model.parameters()]
        groups = [[each for each in parameters if (each.ndim < 2) == few] for few in (True, False)]
        decays = [{"params": each, "weight_decay": 0.3 * n} for n, each in enumerate(groups)]
        optimizer = torch.optim.AdamW(decays, lr=0.3)
        rows = slice(2 * rank, 2 * rank + 2) if way else slice(None)
        words = torch.randint(1, 46, (2, 4, 6), generator=torch.Generator().manual_seed(1))
        for batch in words:
            model(input_ids=batch[rows], labels=batch[rows]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        found = []
        for training in (True, False):
            for cached in (True, False):
                model.train(training)
                named = {"max_new_tokens": 6, "use_cache": cached, "do_sample": False}
                found.append(model.generate(input_ids=prompt, **named).tolist())
        return model, found

    _, expected = tokens_of("")
    told = {}
    for way in SPELLINGS:
        model, found = tokens_of(way)
        told[way] = "" if found == expected else f"{found}, not {expected}"
        told[f"{way}, encoder"] = raised(lambda model=model: model.get_encoder()(prompt))
    return told


def _in_place(model: Any) -> Any:
    for part in (model.encoder, model.decoder):
        for block in part.block:
            tr.fully_shard(block)
    return tr.fully_shard(model)


SPELLINGS: dict[str, Any] = {
    "wrapper": partial(tr.FullyShardedDataParallel, min_num_params=0),
    "in place": _in_place,
}
