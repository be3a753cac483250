"""Optimizers that need whole parameters, on FullyShardedDataParallel; each function is one rank's.

What one process computes is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from support.ddp_faults import raised
from support.fsdp_training import without_common_memory
from torch import nn
from torch.nn import functional

import torsh_runtime as tr

WORDS, WIDTH, ROWS, STEPS = 30, 12, 2, 10
Step = Callable[[Any, Any, dict[str, Any]], None]


class OfEach(torch.optim.Optimizer):
    """Changes each parameter by a function of all its values, its gradient and its state."""

    change: Step

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    change = type(self).change(each, each.grad, self.state[each])
                    each.sub_(change, alpha=group["lr"])


def _by_trust(values: Any, gradient: Any, state: dict[str, Any]) -> Any:
    """LAMB (You et al., 2020) without decay."""
    if not state:
        state.update(first=torch.zeros_like(values), second=torch.zeros_like(values), step=0)
    state["step"] += 1
    state["first"].lerp_(gradient, 0.1)
    state["second"].lerp_(gradient.square(), 0.01)
    change = state["first"] / (state["second"].sqrt() + 1e-6) + 0.1 * values
    return change * (values.norm() / change.norm())


def _by_both_sides(values: Any, gradient: Any, state: dict[str, Any]) -> Any:
    """Shampoo (Gupta et al., 2018), whose state has not the parameter's shape."""
    if values.dim() < 2:
        return gradient
    rows, columns = values.shape
    if not state:
        state.update(left=torch.eye(rows).to(values), right=torch.eye(columns).to(values))
    state["left"] += gradient @ gradient.T
    state["right"] += gradient.T @ gradient
    return _root(state["left"]) @ gradient @ _root(state["right"])


def _root(matrix: Any) -> Any:
    """Return the inverse fourth root."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=1e-12) ** -0.25) @ vectors.T


class Lamb(OfEach):
    change = staticmethod(_by_trust)


class Shampoo(OfEach):
    change = staticmethod(_by_both_sides)


def two_optimizers(model: Any) -> list[Any]:
    """Muon for the matrices of the layers within, AdamW for the rest."""
    named = [*model.named_parameters()]
    inner = [each for name, each in named if each.ndim == 2 and "inner" in name]
    rest = [each for _, each in named if not any(each is own for own in inner)]
    return [torch.optim.AdamW(rest, lr=1e-2), torch.optim.Muon(inner, lr=2e-2)]


KINDS: dict[str, Callable[[Any], list[Any]]] = {
    "Lamb": lambda model: [Lamb(model.parameters())],
    "Shampoo": lambda model: [Shampoo(model.parameters())],
    "Adafactor": lambda model: [torch.optim.Adafactor(model.parameters(), lr=1e-2)],
    "AdamW": lambda model: [torch.optim.AdamW(model.parameters(), lr=1e-2)],
}
if hasattr(torch.optim, "Muon"):
    KINDS["Muon"] = two_optimizers


class Net(nn.Module):
    """A small model with uneven rows, a parameter without dimensions, and tied ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, wide), nn.GELU(), nn.Linear(wide, WIDTH))
            for wide in (13, 17)
        )
        self.norm, self.scale = nn.LayerNorm(WIDTH), nn.Parameter(torch.ones(()))
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.embed.weight
        self.to(torch.float64)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words)
        for each in self.inner:
            hidden = self.norm(hidden + self.scale * each(hidden))
        found: torch.Tensor = self.head(hidden)
        return found


def train(
    model: Any,
    optimizers: Sequence[Any],
    steps: Sequence[int],
    rows: slice,
    is_clipped: bool = True,
) -> None:
    """Train with some rows of each step's batch."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        words, wanted = (torch.randint(WORDS, (12, 5), generator=generator)[rows] for _ in range(2))
        for each in optimizers:
            each.zero_grad()
        functional.cross_entropy(model(words).flatten(0, 1), wanted.flatten()).backward()
        if is_clipped:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for each in optimizers:
            each.step()


def own_rows(rank: int, ranks: int) -> slice:
    size = 12 // ranks
    return slice(rank * size, (rank + 1) * size)


@cache
def alone(name: str) -> dict[str, Any]:
    """Return the parameters of one process."""
    model = Net()
    train(model, KINDS[name](model), range(STEPS), slice(None))
    return dict(model.state_dict())


def difference(
    name: str,
    rank: int,
    ranks: int,
    gathers: bool,
    saved: Path | None = None,
    strategy: str = "full",
) -> float:
    """The largest difference from one process; if `saved` is given, across a checkpoint."""
    with without_common_memory(gathers):
        model = _wrapped(strategy)
    optimizers = KINDS[name](model)
    half = range(STEPS // 2), range(STEPS // 2, STEPS)
    train(model, optimizers, half[0], own_rows(rank, ranks))
    if saved is not None:
        tr.checkpoint.Checkpointer(saved).save(1, _state(model, optimizers))
        model = _wrapped(strategy)
        optimizers = KINDS[name](model)
        tr.checkpoint.Checkpointer(saved).load(_state(model, optimizers))
    train(model, optimizers, half[1], own_rows(rank, ranks))
    found, expected = model.state_dict(), alone(name)
    return max(float((found[key] - expected[key]).abs().max()) for key in expected)


def _wrapped(strategy: str = "full") -> Any:
    options: dict[str, Any] = {"auto_wrap_policy": tr.SizeBasedAutoWrap(50), "min_num_params": 0}
    return tr.FullyShardedDataParallel(Net(), sharding_strategy=strategy, **options)


def _state(model: Any, optimizers: Sequence[Any]) -> dict[str, Any]:
    return {"model": model, **{f"optimizer {n}": each for n, each in enumerate(optimizers)}}


def shapes(rank: int, ranks: int) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Name, shape of this rank's part and of the whole of each parameter, before and after a step
    of an optimizer that needs whole ones."""
    model, whole = _wrapped(), Net().named_parameters()
    wholes = {name: tuple(each.shape) for name, each in whole}
    found = [
        (name, tuple(each.shape), wholes[name]) for name, each in model.module.named_parameters()
    ]
    train(model, KINDS["Lamb"](model), range(1), own_rows(rank, ranks))
    return found + [
        (name, tuple(each.shape), wholes[name]) for name, each in model.module.named_parameters()
    ]


def kept_gradients(rank: int, ranks: int) -> float:
    """Gradients that are there, and that no_sync() keeps, when owners get their parameters."""
    model, one = _wrapped(), Net()
    optimizer = Lamb(model.parameters())
    whole = Lamb(one.parameters())
    train(one, [], range(1), slice(None))
    generator = torch.Generator().manual_seed(0)
    words, wanted = (torch.randint(WORDS, (12, 5), generator=generator) for _ in range(2))
    rows = own_rows(rank, ranks)
    functional.cross_entropy(model(words[rows]).flatten(0, 1), wanted[rows].flatten()).backward()
    model.clip_grad_norm_(0.5)
    optimizer.step()
    whole.step()
    functional.cross_entropy(one(words).flatten(0, 1), wanted.flatten()).backward()
    functional.cross_entropy(model(words[rows]).flatten(0, 1), wanted[rows].flatten()).backward()
    optimizer.step()  # with the sum of both gradients
    whole.step()
    found, expected = model.state_dict(), one.state_dict()
    return max(float((found[key] - expected[key]).abs().max()) for key in expected)


def same_bits(rank: int, ranks: int) -> bool:
    """Whether Muon leaves the bits that it leaves on replicas, in float32."""
    sharded = tr.FullyShardedDataParallel(
        Net().float(), auto_wrap_policy=tr.SizeBasedAutoWrap(50), min_num_params=0
    )
    replicas = tr.DistributedDataParallel(Net().float())
    for model in (sharded, replicas):
        train(model, KINDS["Muon"](model), range(STEPS), own_rows(rank, ranks), is_clipped=False)
    found = sharded.state_dict()
    return all(
        torch.equal(found[name], each) for name, each in replicas.module.state_dict().items()
    )


def _loss(model: Any, step: int, rows: slice) -> Any:
    generator = torch.Generator().manual_seed(step)
    words, wanted = (torch.randint(WORDS, (12, 5), generator=generator)[rows] for _ in range(2))
    return functional.cross_entropy(model(words).flatten(0, 1), wanted.flatten())


class Clears(Lamb):
    """Removes gradients when it has stepped."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.zero_grad()


class Fails(Lamb):
    """Cannot step for the first time, unlike its copies, which have other parameters."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._first = id(self.param_groups[0]["params"][0])

    def step(self, closure: Any = None) -> None:
        if not self.state and id(self.param_groups[0]["params"][0]) == self._first:
            self.state["tried"]
            raise KeyError("first")
        super().step(closure)


class Asks(Lamb):
    """Computes the loss itself, and needs an element of each gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for each in group["params"]:
                assert each.grad is None or each.grad.abs().max() >= 0
        super().step()


def clears(model: Any, rows: slice) -> None:
    optimizer = Clears(model.parameters())
    for step in range(4):
        _loss(model, step, rows).backward()
        if step % 2:
            optimizer.step()


def fails(model: Any, rows: slice) -> None:
    optimizer = Fails(model.parameters())
    for step in range(4):
        _loss(model, step, rows).backward()
        with suppress(KeyError):
            optimizer.step()
        if step:
            optimizer.zero_grad()


def asks(model: Any, rows: slice) -> None:
    optimizer = Asks(model.parameters())
    for step in range(4):

        def closure(step: int = step) -> Any:
            loss = _loss(model, step, rows)
            loss.backward()  # in addition to those of the step before
            return loss

        optimizer.step(closure)


def adds_groups(model: Any, rows: slice) -> None:
    named = [*model.named_parameters()]
    optimizer = Lamb([each for name, each in named if "inner.0" in name])
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": [p for name, p in named if "inner.1" in name]})
        optimizer.zero_grad()
        _loss(model, step, rows).backward()
        optimizer.step()


def replaces(model: Any, rows: slice) -> None:
    optimizer = Lamb(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        _loss(model, step, rows).backward()
        for each in model.parameters():
            each.grad = each.grad.sign() + each.grad
        optimizer.step()


def clips_by_parts(model: Any, rows: slice) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        _loss(model, step, rows).backward()
        norm = nn.utils.get_total_norm([each.grad for each in model.parameters()])
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)
        optimizer.step()


def goes_back_twice(model: Any, rows: slice) -> None:
    """Two forward passes before two backward passes, and two backward passes of one."""
    optimizer = Lamb(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        first, second = _loss(model, step, rows), _loss(model, step + 10, rows)
        first.backward()
        second.backward()
        third = _loss(model, step + 20, rows)
        third.backward(retain_graph=True)
        third.backward()
        optimizer.step()


def fails_in_forward(model: Any, rows: slice) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        with suppress(IndexError):
            model(torch.full((2, 3), WORDS))
        optimizer.zero_grad()
        _loss(model, step, rows).backward()
        optimizer.step()


HABITS = (
    clears,
    fails,
    asks,
    adds_groups,
    replaces,
    clips_by_parts,
    goes_back_twice,
    fails_in_forward,
)
"""Programs that do something unusual, which ends as in one process."""


def habit(program: Callable[[Any, slice], None], rank: int, ranks: int) -> float:
    model, one = _wrapped(), Net()
    program(model, own_rows(rank, ranks))
    program(one, slice(None))
    found, expected = model.state_dict(), one.state_dict()
    return max(float((found[key] - expected[key]).abs().max()) for key in expected)


def set_whole(rank: int, ranks: int) -> float:
    """The state of one process's optimizer, set into a model that no step has arranged yet."""
    one, model = Net(), _wrapped()
    whole, parts = (Lamb(each.parameters()) for each in (one, model))
    train(one, [whole], range(3), slice(None))
    tr.set_model_state_dict(model, one.state_dict())
    options = tr.StateDictOptions(full_state_dict=True)
    tr.set_optimizer_state_dict(model, parts, whole.state_dict(), options=options)
    train(one, [whole], range(3, 6), slice(None))
    train(model, [parts], range(3, 6), own_rows(rank, ranks))
    found, expected = model.state_dict(), one.state_dict()
    return max(float((found[key] - expected[key]).abs().max()) for key in expected)


def refused(rank: int) -> dict[str, str]:
    """What is raised for what would go wrong."""
    hooked, filtered = _wrapped(), _wrapped()
    hooked.module.scale.register_post_accumulate_grad_hook(lambda _: None)
    optimizer = Lamb([each for each in filtered.parameters() if each.numel()])
    _loss(filtered, 0, slice(None)).backward()
    return {
        "hook": raised(lambda: _loss(hooked, 0, slice(None))),
        "other parameters": raised(optimizer.step),
    }


def bodies(ranks: int, folder: Path) -> dict[Any, Any]:
    """Each scene by its name, a function of the rank. What one process computes is computed here,
    and not on each rank."""
    found: dict[Any, Any] = {}
    for name in KINDS:
        alone(name)
        for gathers in (False, True):
            found[name, gathers] = partial(difference, name, ranks=ranks, gathers=gathers)
        saved = folder / f"{name}-{ranks}"
        found[name, "loaded"] = partial(difference, name, ranks=ranks, gathers=False, saved=saved)
    if "Muon" in KINDS:
        found["bits"] = partial(same_bits, ranks=ranks)
    for program in HABITS:
        found[program.__name__] = partial(habit, program, ranks=ranks)
    found["set whole"] = partial(set_whole, ranks=ranks)
    found["refused"] = refused
    found["shapes"] = partial(shapes, ranks=ranks)
    found["kept"] = partial(kept_gradients, ranks=ranks)
    return found
