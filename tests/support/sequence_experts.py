"""Experts in blocks of which ranks have parts of the sequence, beside one process; each function
one rank's part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from support.experts import single
from support.refusing import refused
from support.tensor_parallel import Kit, kit, plain

import torsh_runtime as tr
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.layouts import cut, layouts_of, piece_of

WIDTH, LENGTH, ROWS, STEPS, EXPERTS, CLIPPED = 8, 8, 4, 3, 5, 0.2
PLAN = {
    "norm?": tr.Part(1),
    "before": tr.Column(sequence_dim=1),
    "after": tr.Row(sequence_dim=1),
}


@dataclass(frozen=True)
class Case:
    """How many ranks have a layer's experts, along which axes they lie, and how they lie."""

    experts: int
    over: tuple[str, ...]
    dp: int = 2
    tp: int = 2
    capacity: float | None = None
    rows: int = ROWS
    """Of one only do ranks' tokens come in the order of one process."""
    sharded: bool = False


CASES = {
    "for each part": Case(2, ("dp",)),
    "for all parts": Case(4, ("dp", "tp")),
    "within the parts": Case(2, ("dp", "tp")),
    "for half of the parts": Case(2, ("dp", "tp"), 1, 4),
    "whole": Case(1, ("dp", "tp")),
    "with a capacity": Case(4, ("dp", "tp"), 1, 4, 0.8, 1),
    "sharded": Case(2, ("dp",), sharded=True),
}


def model_of(tools: Kit, mesh: Any, options: dict[str, Any], capacity: float | None) -> Any:
    """Norms, a layer of experts and linear ones, in float64. mesh: None in one process."""
    nn = tools.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.before, self.after = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
            self.experts = tr.MixtureOfExperts(
                WIDTH,
                8,
                EXPERTS,
                capacity_factor=capacity,
                dtype=tools.torch.float64 if tools.is_torch else np.float64,
                framework=tools.name,
                **options,
            )

        def forward(self, x: Any) -> Any:
            x = x + self.after(tools.F.gelu(self.before(self.norm1(x))))
            found, balance = self.experts(self.norm2(x))
            return x + found, balance

    tools.seed(0)
    return tools.double(Block())


def train(tools: Kit, model: Any, rows: slice, mesh: Any, enter: Any, leave: Any) -> dict[str, Any]:
    """enter, leave: what gives a rank its part of a tensor, and all ranks all."""
    optimizer, losses, norms = tools.adamw(model), [], []
    gradients: dict[str, Any] = {}
    for step in range(STEPS):
        random = np.random.default_rng(step)
        inputs = random.normal(size=(ROWS, LENGTH, WIDTH))[rows]
        found, balance = model(enter(tools.tensor(inputs)))
        loss = (leave(found).sin() * tools.tensor(np.cos(inputs * 7))).mean() + balance * 0.05
        optimizer.zero_grad()
        loss.backward()
        named = [each for each in model.named_parameters() if each[1].grad is not None]
        gradients = gradients or {name: plain(each.grad).copy() for name, each in named}
        losses.append(float(loss.item()))
        norms.append(tr.clip_grad_norm_(model, CLIPPED, mesh))
        optimizer.step()
    parameters = {name: plain(each).copy() for name, each in model.named_parameters()}
    return {
        "losses": np.array(losses),
        "norms": np.array(norms),
        "gradients": gradients,
        "parameters": parameters,
    }


def beside_one_process(name: str, framework: str, rank: int) -> dict[str, Any]:
    """How far four ranks are from one process, and the bits of what several of them have."""
    tools, case = kit(framework), CASES[name]
    whole = model_of(tools, None, {"mesh": single()}, case.capacity)
    expected = train(tools, whole, slice(case.rows), None, same, same)
    mesh = tr.init_device_mesh({"dp": case.dp, "tp": case.tp})
    mesh = mesh.view({"edp": -1, "ep": case.experts}, over=case.over)
    options = {"mesh": mesh["ep"], "data": mesh["dp", "tp"], "sequence": mesh["tp"]}
    made = model_of(tools, mesh, options, case.capacity)
    model = tr.parallelize(made, mesh["tp"], PLAN)
    kind: Any = tr.FullyShardedDataParallel if case.sharded else tr.DistributedDataParallel
    fields = {"min_num_params": 0} if case.sharded else {}
    wrapped = kind(model, process_group=mesh["dp"], **fields)
    here = mesh.coordinate["dp"]
    rows = slice(case.rows // case.dp * here, case.rows // case.dp * (here + 1))
    group, sizes = mesh.get_group("tp"), [LENGTH // case.tp] * case.tp

    def enter(x: Any) -> Any:
        return regions.scatter(x, group, 1, sizes)

    def leave(x: Any) -> Any:
        return regions.gather(x, group, 1, sizes)

    found = train(tools, wrapped, rows, mesh, enter, leave)
    apart = {"norms": float(np.abs(found["norms"] - expected["norms"]).max())}
    losses = np.array([found["losses"]])
    mesh.get_group("dp").all_reduce(losses)
    apart["losses"] = float(np.abs(losses / case.dp - expected["losses"]).max())
    bits = {}
    if not case.sharded:
        lie = layouts_of(wrapped)
        for kind_of, name_of in ((k, n) for k in ("gradients", "parameters") for n in found[k]):
            wanted = expected[kind_of][name_of.removeprefix("module.")]
            if name_of in lie:
                wanted = cut(wanted, piece_of(name_of, lie[name_of], mesh))
            value = found[kind_of][name_of]
            apart[f"{kind_of} {name_of}"] = float(np.abs(value - wanted).max(initial=0.0))
            piece = piece_of(name_of, lie[name_of], mesh) if name_of in lie else ""
            bits[f"{kind_of} {name_of} {piece}"] = value.tobytes()
    return {"apart": apart, "bits": bits}


def same(x: Any) -> Any:
    return x


def refusals(rank: int) -> dict[str, str]:
    """What is said to four ranks that ask for what does not fit; "" where nothing is."""
    tools, mesh = kit("nn"), tr.init_device_mesh({"dp": 2, "tp": 2})
    mesh = mesh.view({"edp": -1, "ep": 2}, over=("dp",))
    told = {"mesh": mesh["ep"], "data": mesh["dp", "tp"], "sequence": mesh["tp"]}
    whole = tools.tensor(np.random.default_rng(0).normal(size=(ROWS, LENGTH, WIDTH)))
    part = tools.tensor(whole.data[:, LENGTH // 2 * (rank % 2) :][:, : LENGTH // 2].copy())
    six = tr.init_device_mesh({"dp": 1, "tp": 4}).view({"edp": 1, "ep": 4}, over=("dp", "tp"))

    def run(options: dict[str, Any], inputs: Any, plan: dict[str, Any], *first: Any) -> None:
        made = tr.parallelize(model_of(tools, mesh, options, None), mesh["tp"], plan)
        for each in (*first, inputs):
            made(each)

    plain_plan = {"before": tr.Column(), "after": tr.Row()}
    alike, no_numbers = (tools.tensor(np.full(part.shape, x)) for x in (1.0, np.nan))
    asked = {
        "alike": lambda: run(told, alike, PLAN),
        "no numbers": lambda: run(told, no_numbers, PLAN),
        "untold behind no numbers": lambda: run(
            {**told, "sequence": None}, part, PLAN, no_numbers, alike
        ),
        "parts untold": lambda: run({**told, "sequence": None}, part, PLAN),
        "whole, and told of parts": lambda: run(told, whole, plain_plan),
        "no axis": lambda: run({**told, "sequence": mesh.get_group("tp")}, part, PLAN),
        "another mesh": lambda: run({**told, "sequence": six["tp"]}, part, PLAN),
        "told on one rank": lambda: run(
            {**told, "sequence": mesh["tp"] if rank else None}, part, PLAN
        ),
        "not among the data": lambda: run({**told, "data": mesh["dp"]}, part, PLAN),
        "whole": lambda: run({"mesh": mesh["ep"], "data": mesh["dp"]}, whole, plain_plan),
    }
    return refused(asked)
