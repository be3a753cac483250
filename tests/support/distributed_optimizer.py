"""An optimizer spread over ranks, of which some have other experts, beside one process; each
function is one rank's part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from support.checkpoint_training import everything
from support.experts import single
from support.refusing import refused
from support.tensor_parallel import Kit, kit, plain

import torsh_runtime as tr
from torsh_runtime import optim
from torsh_runtime.parallel.layouts import cut, layouts_of, piece_of

WIDTH, ROWS, EXPERTS, STEPS = 6, 24, 5, 6
CLIPPED, RATE = 0.1, 0.01


def model_of(tools: Kit, mesh: Any, experts: int = EXPERTS) -> Any:
    """Two layers of experts between others, in float64. mesh: None in one process."""
    nn = tools.nn
    axis, data = (single(), None) if mesh is None else (mesh["ep"], mesh["dp", "cp"])
    dtype: Any = tools.torch.float64 if tools.is_torch else np.float64
    options = {"mesh": axis, "data": data, "dtype": dtype, "framework": tools.name}

    class Model(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
            self.experts = nn.ModuleList(
                [tr.MixtureOfExperts(WIDTH, 8, experts, **options) for _ in range(2)]
            )

        def forward(self, x: Any) -> Any:
            x, total = self.first(x), 0.0
            for layer in self.experts:
                found, balance = layer(x)
                x, total = x + found, total + balance
            return self.last(x), total

    tools.seed(0)
    return tools.double(Model())


def optimizer_of(tools: Kit, parameters: Any, **options: Any) -> Any:
    kind: Any = tools.torch.optim.AdamW if tools.is_torch else optim.AdamW
    settings = {"lr": RATE, "weight_decay": 0.1}
    if options:
        return tr.DistributedOptimizer(parameters, kind, **settings, **options)
    return kind(parameters, **settings)


def train(
    tools: Kit, model: Any, optimizer: Any, steps: range, rows: slice, mesh: Any
) -> list[float]:
    """Norms of the gradients before they are clipped."""
    norms = []
    for step in steps:
        inputs = np.random.default_rng(step).normal(size=(ROWS, WIDTH))[rows]
        found, balance = model(tools.tensor(inputs))
        loss = (found.sin() * found.sin() * 9).mean() + balance * 0.01
        optimizer.zero_grad()
        loss.backward()
        norms.append(tr.clip_grad_norm_(model, CLIPPED, mesh))
        optimizer.step()
    return norms


def mesh_of(sizes: dict[str, int], experts: int) -> Any:
    return tr.init_device_mesh(sizes).view({"edp": -1, "ep": experts}, over=("dp", "cp"))


class Spread:
    """What a rank of a mesh trains."""

    def __init__(self, tools: Kit, mesh: Any, experts: int = EXPERTS) -> None:
        self.tools, self.mesh, self.data = tools, mesh, mesh["dp", "cp"]
        group = self.data.flatten().get_group()
        self.model = tr.DistributedDataParallel(
            model_of(tools, mesh, experts), process_group=self.data
        )
        self.optimizer = self.anew()
        size = ROWS // group.world_size
        self.rows = slice(size * group.rank, size * (group.rank + 1))
        self.state = {"model": self.model, "optimizer": self.optimizer, "mesh": mesh}

    def anew(self) -> Any:
        parameters = [*self.model.parameters()]
        groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": RATE / 2}]
        return optimizer_of(self.tools, groups, model=self.model, process_group=self.data)

    def train(self, steps: range) -> list[float]:
        return train(self.tools, self.model, self.optimizer, steps, self.rows, self.mesh)

    def apart(self, expected: dict[str, Any]) -> dict[str, float]:
        apart = {}
        for name, value, layout in self.parameters():
            wanted = expected[name]
            if layout is not None:
                wanted = cut(wanted, piece_of(name, layout, self.mesh))
            assert value.shape == wanted.shape, name
            apart[name] = float(np.abs(value - wanted).max(initial=0.0))
        return apart

    def bits(self) -> dict[str, bytes]:
        return {
            f"{name} {piece_of(name, layout, self.mesh) if layout else ''}": value.tobytes()
            for name, value, layout in self.parameters()
        }

    def parameters(self) -> list[tuple[str, Any, Any]]:
        lie = layouts_of(self.model)
        named = self.model.named_parameters()
        return [(n.removeprefix("module."), plain(each), lie.get(n)) for n, each in named]


def beside_one_process(framework: str, experts: int, directory: Path, rank: int) -> dict[str, Any]:
    """How far four ranks, over so many of which experts are spread, are from one process; also when
    they go on from state_dict(), and on another mesh from a checkpoint."""
    tools = kit(framework)
    first, rest = range(STEPS // 2), range(STEPS // 2, STEPS)
    alone = model_of(tools, None)
    parameters = [*alone.parameters()]
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": RATE / 2}]
    whole = optimizer_of(tools, groups)
    norms = train(tools, alone, whole, range(STEPS), slice(None), None)
    expected = {name: plain(each).copy() for name, each in alone.named_parameters()}

    run = Spread(tools, mesh_of({"dp": 2, "cp": 2}, experts))
    found = run.train(first)
    checkpointer = tr.checkpoint.Checkpointer(directory)
    checkpointer.save(len(first), run.state)
    kept = run.optimizer.state_dict()
    run.optimizer = run.anew()
    run.optimizer.load_state_dict(kept)
    found += run.train(rest)
    apart = {"norms": float(np.abs(np.array(found) - norms).max()), **run.apart(expected)}
    other = Spread(tools, mesh_of({"dp": 4, "cp": 1}, 6 - experts))
    checkpointer.load(other.state)
    other.train(rest)
    apart |= {f"reloaded {name}": far for name, far in other.apart(expected).items()}
    checkpointer.save(STEPS, other.state)
    saved, _ = everything(max(directory.glob("step-*")))
    for name, parameter in alone.named_parameters():
        for kind in ("exp_avg", "exp_avg_sq"):
            state = saved[f"optimizer/state/{name}/{kind}"] - np.array(whole.state[parameter][kind])
            apart[f"{kind} of {name}"] = float(np.abs(state).max())
    return {"apart": apart, "bits": other.bits(), "kept": len(kept["local"]["state"])}


def refusals(rank: int) -> dict[str, str]:
    """What is said to four ranks that ask for what does not fit, and "" where nothing is."""
    tools, mesh = kit("nn"), mesh_of({"dp": 2, "cp": 2}, 2)
    data = mesh["dp", "cp"]
    run, even, alike = Spread(tools, mesh), Spread(tools, mesh, 4), Spread(tools, mesh, 4)
    kept = run.optimizer.state_dict()
    for name, parameter in alike.model.named_parameters():
        if name.endswith((".up", ".down")):
            parameter.data[...] = np.arange(parameter.data.size).reshape(parameter.shape) * 0.001
    other = tools.nn.Linear(WIDTH, 2)
    foreign = [*run.model.parameters(), *other.parameters()]

    def untold(of: Spread) -> None:
        before = of.bits()
        of.optimizer = optimizer_of(tools, of.model.parameters(), process_group=data)
        try:
            of.train(range(1))
        finally:
            assert of.bits() == before

    def sharded() -> None:
        model = tr.FullyShardedDataParallel(model_of(tools, mesh), process_group=data)
        optimizer_of(tools, model.parameters(), model=model, process_group=data)

    def made(model: Any, parameters: Any, group: Any) -> Any:
        return optimizer_of(tools, parameters, model=model, process_group=group)

    own = [*run.model.parameters()]
    asked: dict[str, Any] = {
        "shapes": lambda: untold(run),
        "values": lambda: untold(even),
        "gradients": lambda: untold(alike),
        "no mesh": lambda: made(run.model, own, None),
        "sharded": sharded,
        "another's parameters": lambda: made(run.model, foreign, data),
        "not the same": lambda: made(run.model, own[rank:], data),
        "gathered": lambda: made(run.model, own, data).gather_state_dict(),
        "of one process": lambda: made(run.model, own, data).load_state_dict(
            optimizer_of(tools, other.parameters()).state_dict()
        ),
        "another's state": lambda: made(run.model, own[:3], data).load_state_dict(kept),
    }
    return refused(asked)
