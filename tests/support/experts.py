"""Experts on several ranks beside what one process computes; each function one rank's part."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from support.refusing import refused as refused_of
from support.tensor_parallel import kit, plain

import torsh_runtime as tr
from torsh_runtime import nn
from torsh_runtime.parallel.dispatch import sending
from torsh_runtime.parallel.layouts import cut, layouts_of

Array = NDArray[Any]
TOKENS = (0, 5, 7, 3)
"""Of each rank."""


@dataclass(frozen=True)
class Case:
    """A layer."""

    num_experts: int = 4
    top_k: int = 2
    activation: str = "gelu"
    gated: bool = False
    capacity_factor: float | None = None


CASES = {
    "dropless": Case(),
    "one expert a token": Case(top_k=1, activation="relu"),
    "uneven": Case(num_experts=3, top_k=3),
    "gated": Case(num_experts=5, gated=True, activation="silu"),
    "capacity": Case(capacity_factor=0.6),
    "capacity for one": Case(top_k=1, capacity_factor=0.4),
}


class Framework:
    """What differs between torch and nn here."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.torch: Any = importlib.import_module("torch") if name == "torch" else None

    def seed(self) -> None:
        (self.torch or nn).manual_seed(3)

    def tensor(self, array: Array, needs_gradient: bool = False) -> Any:
        if self.torch:
            return self.torch.tensor(array, requires_grad=needs_gradient)
        return nn.Tensor(array, requires_grad=needs_gradient)

    def layer(self, case: Case, mesh: Any, data: Any) -> Any:
        self.seed()
        dtype = self.torch.float64 if self.torch else np.float64
        return tr.MixtureOfExperts(
            6, 8, **vars(case), mesh=mesh, data=data, dtype=dtype, framework=self.name
        )


def inputs(ranks: int) -> tuple[list[Array], list[Array]]:
    """Tokens of each rank, and weights of what becomes of them."""
    random = np.random.default_rng(1)
    first, second = (
        [random.normal(size=(1, count, 6)) for count in TOKENS[:ranks]] for _ in range(2)
    )
    return first, second


def assigned(case: Case, scores: Array) -> Array:
    """(tokens, experts): who goes where."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, : case.top_k]
    taken, found = np.zeros(case.num_experts, int), np.zeros(scores.shape, bool)
    limit = np.inf
    if case.capacity_factor is not None:
        limit = np.ceil(case.capacity_factor * order.size / case.num_experts)
    for token, experts in enumerate(order):
        for expert in experts:
            found[token, expert] = taken[expert] < limit
            taken[expert] += 1
    return found


def of_one_process(case: Case, kind: Framework, ranks: int) -> dict[str, Array]:
    """Results and gradients, by computing all tokens with all experts."""
    layer = kind.layer(case, single(), None)
    tokens, factors = (np.concatenate(each, axis=1)[0] for each in inputs(ranks))
    leaf = kind.tensor(tokens, True)
    scores = layer.port.functional.softmax(layer.port.functional.linear(leaf, layer.router), -1)
    plain = np.array(scores.detach())
    chosen = np.argsort(np.argsort(-plain, axis=1, kind="stable"), axis=1) < case.top_k
    gates = scores * kind.tensor(chosen * 1.0)
    if case.top_k > 1:
        gates = gates / gates.sum(-1, keepdim=True)
    gates = gates * kind.tensor(assigned(case, plain) * 1.0)
    activate, total = getattr(layer.port.functional, case.activation), None
    for expert in range(case.num_experts):
        hidden = leaf @ layer.up[expert].T
        first = activate(hidden[:, :8])
        found = ((first * hidden[:, 8:] if case.gated else first) @ layer.down[expert].T) * gates[
            :, expert : expert + 1
        ]
        total = found if total is None else total + found
    assert total is not None
    parts = chosen.sum(axis=0) / chosen.sum()
    balance = (scores.mean(0) * kind.tensor(parts)).sum() * case.num_experts
    loss = (total.sin() * kind.tensor(factors)).sum() * (1 / ranks) + balance * 0.3
    loss.backward()
    named = {"router": layer.router, "up": layer.up, "down": layer.down, "tokens": leaf}
    gradients = {name: np.array(each.grad) for name, each in named.items()}
    return {**gradients, "result": np.array(total.detach()), "balance": np.array(balance.item())}


def single() -> Any:
    """A group of this rank alone."""
    return tr.init_device_mesh((-1, 1), ("all", "one"))["one"]


def differences(name: str, framework: str, rank: int, ranks: int) -> dict[str, float]:
    """How far this rank's results and gradients are from those of one process; of four ranks two
    have the same experts."""
    case, kind = CASES[name], Framework(framework)
    copies = 2 if ranks == 4 else 1
    mesh = tr.init_device_mesh((-1,), ("dp",)).view({"edp": copies, "ep": -1}, over=("dp",))
    layer = kind.layer(case, mesh["ep"], mesh["dp"])
    expected = of_one_process(case, kind, ranks)
    tokens, factors = (each[rank] for each in inputs(ranks))
    leaf = kind.tensor(tokens, True)
    result, balance = layer(leaf)
    ((result.sin() * kind.tensor(factors)).sum() + balance * 0.3).backward()
    start = sum(TOKENS[:rank])
    own = slice(start, start + TOKENS[rank])
    pairs = {
        "result": (np.array(result.detach())[0], expected["result"][own]),
        "balance": (np.array(balance.item()), expected["balance"]),
        "tokens": (np.array(leaf.grad)[0] / ranks, expected["tokens"][own]),
    }
    layouts = layouts_of(layer)
    for key, parameter in layer.named_parameters():
        gradient, wanted = parameter.grad if kind.torch else parameter.grad.data, expected[key]
        over = mesh["edp" if key in layouts else "dp"].get_group()
        over.all_reduce(gradient)
        gradient /= over.world_size
        if key in layouts:
            wanted = cut(wanted, layouts[key].piece({"ep": mesh.get_local_rank("ep")}))
        pairs[key] = (np.array(gradient), wanted)
    squares = sum(float((expected[key] ** 2).sum()) for key in ("router", "up", "down"))
    pairs["norm"] = (np.array(tr.clip_grad_norm_(layer, 1e9, mesh)), np.array(squares**0.5))
    assert all(found.shape == wanted.shape for found, wanted in pairs.values())
    return {
        key: float(np.abs(found - wanted).max(initial=0)) for key, (found, wanted) in pairs.items()
    }


def sometimes(framework: str, overlaps: bool, rank: int) -> float:
    """How far two ranks, each of which leaves a layer out in another step, are from one process
    that computes what both do. Gradients are averaged by the group that has the experts."""
    kind, tools = Framework(framework), kit(framework)
    mesh = tr.init_device_mesh((-1,), ("dp",)).view({"edp": 1, "ep": 2}, over=("dp",))

    def made(axis: Any, data: Any) -> Any:
        nn_of, layer = tools.nn, kind.layer(Case(), axis, data)

        class Model(nn_of.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.first, self.experts = nn_of.Linear(6, 6), layer
                self.last, self.sometimes = nn_of.Linear(6, 6), nn_of.Linear(6, 6)

            def forward(self, x: Any, leaves_out: bool) -> Any:
                x = self.first(x)
                found, _ = self.experts(x if leaves_out else self.sometimes(x))
                return self.last(found)

        return tools.double(Model())

    options = {"overlap_communication": overlaps, "bucket_size_mb": 1e-6}
    model = tr.DistributedDataParallel(
        made(mesh["ep"], mesh["dp"]),
        process_group=mesh["dp"],
        find_unused_parameters=True,
        **options,
    )
    whole = made(single(), None)
    optimizers = [tools.adamw(each) for each in (model, whole)]
    for step in range(4):
        inputs = np.random.default_rng(step).normal(size=(2, 5, 6))
        for optimizer in optimizers:
            optimizer.zero_grad()
        (model(kind.tensor(inputs[rank]), step % 2 == rank).sin() ** 2).mean().backward()
        for each in range(2):
            found = whole(kind.tensor(inputs[each]), step % 2 == each)
            ((found.sin() ** 2).mean() / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
    expected = {name: np.array(each.detach()) for name, each in whole.named_parameters()}
    lie, apart = layouts_of(model.module), 0.0
    for name, each in model.module.named_parameters():
        wanted = expected[name]
        if name in lie:
            wanted = cut(wanted, lie[name].piece({"ep": mesh.get_local_rank("ep")}))
        apart = max(apart, float(np.abs(np.array(each.detach()) - wanted).max()))
    return apart


def refused(rank: int, ranks: int) -> list[str]:
    """What each wrong use says; some are wrong on one rank only."""
    make = tr.MixtureOfExperts

    def seeded(seed: int) -> Any:
        nn.manual_seed(seed)
        return make(6, 8, 4, framework="nn")

    layer = seeded(0)
    wrong: list[Any] = [
        lambda: make(6, 8, 4, 5, framework="nn"),
        lambda: make(6, 8, 4, activation="tanh", framework="nn"),
        lambda: make(6, 8, 4, capacity_factor=float(-rank), framework="nn"),
        lambda: make(6, 8 + rank, 4, framework="nn"),
        lambda: make(6, 8, 4, framework="jax"),
        lambda: seeded(rank),
        lambda: layer(nn.Tensor(np.zeros((2, 6 + rank)))),
        lambda: make(6, 8, 4, capacity_factor=float("inf"), framework="nn"),
    ]
    said = []
    for each in wrong:
        try:
            each()
        except tr.ConfigError as error:
            said.append(str(error))
    return said


def shared_tokens(framework: str, dtype: str, rank: int) -> dict[str, bytes]:
    """Bits of what comes of tokens that four ranks along "tp" have alike, and of their gradients
    and the router's."""
    tools = kit(framework)
    mesh = tr.init_device_mesh({"dp": 1, "tp": 4}).view({"ep": 4}, over=("dp", "tp"))
    tools.seed(3)
    kind = getattr(tools.torch, dtype) if tools.is_torch else dtype
    options = {"mesh": mesh["ep"], "data": mesh["dp"], "dtype": kind, "framework": framework}
    layer = tr.MixtureOfExperts(17, 9, 5, **options)
    tokens = np.random.default_rng(1).normal(size=(61, 17))
    leaf = tools.tensor(tokens).to(kind).requires_grad_()
    result, balance = layer(leaf)
    ((result.sin() * tools.tensor(tokens)).sum() + balance.sum()).backward()
    values = {"result": result.detach(), "balance": balance.detach(), "tokens": leaf.grad}
    values["router"] = layer.router.grad
    return {name: _bits(tools, each) for name, each in values.items()}


def _bits(tools: Any, tensor: Any) -> bytes:
    """Of a tensor of any dtype; bfloat16, which numpy has not, as float32."""
    return plain(tensor.float() if tools.is_torch else tensor).tobytes()


def rows_sent(rank: int) -> tuple[int, int]:
    """How many rows the experts of four ranks, which have the same tokens, get in all, and how many
    the tokens make."""
    mesh = tr.init_device_mesh({"dp": 1, "tp": 4}).view({"ep": 4}, over=("dp", "tp"))
    nn.manual_seed(3)
    layer = tr.MixtureOfExperts(6, 8, 5, mesh=mesh["ep"], data=mesh["dp"], framework="nn")
    found: list[Array] = []
    counts_of_all = type(layer.ranks).counts_of_all

    def noted(ranks: Any, *arguments: Any) -> Any:
        found.append(counts_of_all(ranks, *arguments))
        return found[-1]

    with mock.patch.object(type(layer.ranks), "counts_of_all", noted):
        layer(nn.Tensor(np.random.default_rng(1).normal(size=(7, 6)).astype(np.float32)))
    return int(found[0].sum()), 7 * layer.top_k


def of_one_part(rank: int) -> float:
    """How far two ranks, each the only one along "tp", are with `sequence` from without."""
    mesh = tr.init_device_mesh({"dp": 2, "tp": 1}).view({"ep": 2}, over=("dp", "tp"))
    tokens = nn.Tensor(np.random.default_rng(rank).normal(size=(9 - rank, 6)).astype(np.float32))
    found = []
    for options in ({"data": mesh["dp"]}, {"data": mesh["dp", "tp"], "sequence": mesh["tp"]}):
        nn.manual_seed(3)
        layer = tr.MixtureOfExperts(6, 8, 5, mesh=mesh["ep"], framework="nn", **options)
        layer.note_parts(mesh.get_group("tp"))
        found.append(np.array(layer(tokens)[0].detach()))
    return float(np.abs(found[0] - found[1]).max())


def no_tokens(rank: int) -> tuple[int, ...]:
    """The shape of what comes of none, which two ranks have alike."""
    mesh = tr.init_device_mesh({"dp": 1, "tp": 2}).view({"ep": 2}, over=("dp", "tp"))
    layer = tr.MixtureOfExperts(6, 8, 5, mesh=mesh["ep"], data=mesh["dp"], framework="nn")
    shape: tuple[int, ...] = layer(nn.Tensor(np.zeros((0, 6), np.float32)))[0].shape
    return shape


def unlike_tokens(rank: int, framework: str = "nn") -> dict[str, str]:
    """What is said to four ranks whose tokens are not the same or others as `data` says; "" where
    nothing is."""
    mesh = tr.init_device_mesh({"dp": 1, "tp": 4}).view({"ep": 4}, over=("dp", "tp"))
    random = np.random.default_rng(0)
    same, other = (random.normal(size=(9, 6)).astype(np.float32) for _ in range(2))

    def run(data: Any, *inputs: Array, is_cut: bool = False) -> None:
        kind = Framework(framework)
        kind.seed()
        layer = tr.MixtureOfExperts(6, 8, 5, mesh=mesh["ep"], data=data, framework=framework)
        if is_cut:
            layer.note_parts(mesh.get_group("tp"))
        for each in inputs:
            layer(kind.tensor(each))

    own = other if rank == 2 else same
    return refused_of(
        {
            "same": lambda: run(mesh["dp"], same, same),
            "others at first": lambda: run(mesh["dp"], own),
            "others later": lambda: run(mesh["dp"], same, own),
            "fewer later": lambda: run(mesh["dp"], same, same[: 9 - rank]),
            "a group": lambda: run(mesh.get_group("dp"), same),
            "same, and counted for each": lambda: run(mesh["dp", "tp"], same, is_cut=True),
        }
    )


def there(body: Any, rank: int) -> Any:
    """What a body gives where torch's tokens are routed on their device, which is the CPU."""
    with mock.patch.object(sending, "_BY_PROCESSOR", ()):
        return body(rank)


def waits(rank: int) -> dict[str, Any]:
    """What two ranks exchange through the processors in the second pass over tokens that are routed
    on their device, how often they wait for it, and what is said to them when later one rank's
    tokens, or all ranks', have another size."""
    import torch

    from torsh_runtime.parallel.dispatch import device

    torch.manual_seed(3)
    array = device.OnHost.array
    layer = tr.MixtureOfExperts(6, 8, 5, framework="torch")
    tokens, group = torch.ones(4, 6), layer.ranks.experts
    layer(tokens)
    found: dict[str, Any] = {}
    with (
        mock.patch.object(type(group), "all_gather_numbers") as exchanged,
        mock.patch.object(device.OnHost, "array", autospec=True, side_effect=array) as waited,
    ):
        layer(tokens)[0].sum().backward()
        found["exchanged"], found["waited"] = exchanged.call_count, waited.call_count

    def without_gradients_on_rank_1() -> None:
        with torch.set_grad_enabled(rank == 0):
            layer(tokens)

    wrong = {
        "here": partial(layer, torch.ones(4, 6 + rank)),
        "all": partial(layer, torch.ones(3)),
        "gradients": without_gradients_on_rank_1,
    }
    return found | refused_of(wrong)
