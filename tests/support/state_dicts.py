"""State of models and optimizers that is returned whole and set again; each function is one rank's
part."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict as of_torch
from support.ddp_faults import raised
from support.fsdp_training import Net
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)

import torsh_runtime as tr
from torsh_runtime.layout import ShardedTensor

BATCH = 12
"""Rows of a step, over all ranks: 1, 2 and 3 divide it."""
ON_HOST = tr.StateDictOptions(full_state_dict=True, cpu_offload=True)
ON_ALL = tr.StateDictOptions(full_state_dict=True)
FROM_FIRST = tr.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
CUTS = ["2", "3"]
"""Layers with which stages after the first begin."""
WAYS = ("ddp", "fsdp", "hybrid", "zero", "tp", "pp")


class Training:
    """A model and its optimizer in float64, wrapped or cut in one way."""

    def __init__(self, way: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.way = way
        self.whole = self.model = _net(way).double()
        self._pipeline: Any = None
        self.mesh: Any = None
        self._cut(tr.get_world_size() if way != "one" else 1)
        self.optimizer = self._optimizer()

    def _cut(self, ranks: int) -> None:
        whole, way = self.whole, self.way
        if way in ("ddp", "zero"):
            self.model = tr.DistributedDataParallel(whole)
        elif way == "fsdp":
            self.model = tr.FullyShardedDataParallel(whole, min_num_params=0)
        elif way == "hybrid":
            mesh = tr.init_device_mesh({"copies": ranks, "parts": 1})
            options = {"sharding_strategy": "hybrid", "process_group": mesh}
            self.model = tr.FullyShardedDataParallel(whole, min_num_params=0, **options)
        elif way == "tp":
            self.mesh = tr.init_device_mesh({"tp": ranks})
            self.model = tr.parallelize(whole, self.mesh, {"0": tr.Column(), "2": tr.Row()})
        elif way == "pp":
            self.mesh = tr.init_device_mesh({"pp": ranks})
            options = {"loss_fn": lambda out, _: out.square().mean(), "cuts": CUTS[: ranks - 1]}
            self._pipeline = tr.PipelineParallel(whole, 2, mesh=self.mesh, **options)
            self.model = self._pipeline

    def _optimizer(self) -> Any:
        groups = _groups(self._pipeline.module if self._pipeline else self.model)
        if self.way == "zero":
            return tr.DistributedOptimizer(groups, torch.optim.AdamW, lr=0.01)
        return torch.optim.AdamW(groups, lr=0.01)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            torch.manual_seed(step)
            rows = torch.randn(BATCH, 6, dtype=torch.float64)
            self.optimizer.zero_grad()
            if self._pipeline is not None:
                self._pipeline.step(rows, rows)
            else:
                if self.way in ("ddp", "fsdp", "hybrid", "zero"):
                    rows = rows.chunk(tr.get_world_size())[tr.get_rank()]
                self.model(rows).square().mean().backward()
            self.optimizer.step()

    def states(self, options: Any = ON_HOST) -> tuple[dict[str, Any], dict[str, Any]]:
        named = {"options": options}
        return (
            tr.get_model_state_dict(self.model, **named),
            tr.get_optimizer_state_dict(self.model, self.optimizer, **named),
        )

    def set(self, model: Any, optimizer: Any, options: Any) -> None:
        tr.set_model_state_dict(self.model, model, options=options)
        tr.set_optimizer_state_dict(self.model, self.optimizer, optimizer, options=options)


def _net(way: str) -> torch.nn.Module:
    if way in ("tp", "pp", "plain"):
        sizes = (6, 12, 12, 3)
        layers = [torch.nn.Linear(*each) for each in pairwise(sizes)]
        return torch.nn.Sequential(layers[0], torch.nn.Tanh(), *layers[1:])
    return Net()


def _groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    named = [each for each in model.named_parameters() if each[1].requires_grad]
    biases = [each for name, each in named if name.endswith("bias")]
    others = [each for name, each in named if not name.endswith("bias")]
    return [{"params": others}, {"params": biases, "weight_decay": 0.0}]


def saved(folder: Path, rank: int) -> dict[str, Any]:
    """Train in each way, and compare what rank 0 gets with one process's."""
    found = {}
    for way in _ways():
        training = Training(way)
        training.train(0, 3)
        states = training.states()
        if rank != 0:
            assert states == ({}, {})
            continue
        torch.save(states, folder / f"{way}-{tr.get_world_size()}.pt")
        alone = Training("plain" if way in ("tp", "pp") else "one")
        alone.train(0, 3)
        expected = (
            of_torch.get_model_state_dict(alone.model),
            of_torch.get_optimizer_state_dict(alone.model, alone.optimizer),
        )
        found[way] = difference(states, expected) or _goes_on(alone, states)
    return found


def _ways() -> tuple[str, ...]:
    return WAYS if tr.get_world_size() > 1 else ("fsdp", "ddp")


def _goes_on(alone: Training, states: tuple[Any, Any]) -> str:
    """Load the states by torch's own functions, go on, and compare with what was never stopped."""
    alone.train(3, 4)
    expected = dict(alone.model.named_parameters())
    for by_torch in (True, False):
        other, given = Training(alone.way, seed=1), copy.deepcopy(states)
        other.model.load_state_dict(given[0])
        if by_torch:
            of_torch.set_optimizer_state_dict(other.model, other.optimizer, given[1])
        else:
            other.optimizer.load_state_dict(given[1])
        other.train(3, 4)
        if told := difference(dict(other.model.named_parameters()), expected):
            return f"by {'torch' if by_torch else 'the optimizer'}: {told}"
    return ""


def loaded(folder: Path, rank: int) -> dict[str, str]:
    """Set what each world has saved, and get it back."""
    found = {}
    for number, file in enumerate(sorted(folder.glob("*.pt"))):
        given = torch.load(file, weights_only=True)
        kin = ("tp", "pp") if file.name.startswith(("tp", "pp")) else ("fsdp", "ddp", "zero")
        for way in [each for each in _ways() if each in kin]:
            training = Training(way, seed=1)
            if number % 2:
                training.set(*given, ON_ALL)
            else:
                training.set(*(given if rank == 0 else ({}, {})), FROM_FIRST)
            back = training.states(ON_ALL)
            found[f"{way} of {file.name}"] = difference(back, given, exact=True)
    return found


def parts(rank: int) -> dict[str, str]:
    """Each rank's own parts, set again in a model that is cut in the same way."""
    found = {}
    for way in ("fsdp", "tp", "ddp"):
        training, other = Training(way), Training(way, seed=1)
        training.train(0, 2)
        whole = training.states()
        own = training.states(tr.StateDictOptions(cpu_offload=True))
        cut = [each for each in own[0].values() if isinstance(each, ShardedTensor)]
        assert bool(cut) == (way != "ddp")
        other.set(*own, tr.StateDictOptions())
        found[way] = difference(other.states(), whole, exact=True)
    return found


def difference(found: Any, expected: Any, exact: bool = False) -> str:
    """Where two states differ; "" if nowhere."""
    if isinstance(expected, torch.Tensor):
        close = dict.fromkeys(("rtol", "atol"), 0.0 if exact else 1e-12)
        return "" if torch.allclose(found.double(), expected.double(), **close) else "its values"
    if isinstance(expected, dict):
        if found.keys() != expected.keys():
            return f"{[*found]} instead of {[*expected]}"
        pairs = {key: (found[key], each) for key, each in expected.items()}
    elif isinstance(expected, list | tuple) and len(found) == len(expected):
        pairs = dict(enumerate(zip(found, expected, strict=True)))
    else:
        return "" if found == expected else f"{found} instead of {expected}"
    told = ((key, difference(*pair, exact)) for key, pair in pairs.items())
    return next((f"{key}: {each}" for key, each in told if each), "")


class Extra(torch.nn.Module):
    """A module with more state than tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 4)
        self.seen: Any = {"calls": 0, "range": torch.zeros(2)}

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


def extra(rank: int) -> dict[str, Any]:
    """Extra state, tied names, and a head that the state lacks."""
    model = tr.FullyShardedDataParallel(Extra(), min_num_params=0)
    model.module.seen = {"calls": 7, "range": torch.tensor([1.0, 2.0])}
    state = tr.get_model_state_dict(model, options=ON_ALL)
    other = tr.FullyShardedDataParallel(Extra(), min_num_params=0)
    told = tr.set_model_state_dict(other, state)
    assert (told.missing_keys, told.unexpected_keys) == ([], [])
    assert str(other.module.seen) == str(model.module.seen)
    tied = tr.FullyShardedDataParallel(Net(), min_num_params=0)
    given = tr.get_model_state_dict(tied, options=ON_ALL)
    assert given["tied.weight"] is given["inner.0.weight"]
    del given["inner.0.weight"]
    tr.set_model_state_dict(tied, given)
    frozen = tr.StateDictOptions(full_state_dict=True, ignore_frozen_params=True)
    given["head"] = given.pop("last.weight")
    loose = tr.StateDictOptions(strict=False)
    return {
        "frozen": [*given.keys() - tr.get_model_state_dict(tied, options=frozen)],
        "misfits": tuple(tr.set_model_state_dict(tied, given, options=loose)),
        "strict": raised(lambda: tr.set_model_state_dict(tied, given)),
    }


def partial_optimizers(rank: int) -> dict[str, Any]:
    """State by numbers, of fewer parameters, and of several optimizers."""
    alone, training = Training("one"), Training("fsdp", seed=1)
    alone.train(0, 2)
    tr.set_optimizer_state_dict(training.model, training.optimizer, alone.optimizer.state_dict())
    expected = of_torch.get_optimizer_state_dict(alone.model, alone.optimizer)
    found = {"numbers": difference(training.states(ON_ALL)[1], expected)}
    biases = [each for name, each in training.model.named_parameters() if "bias" in name]
    one = torch.optim.SGD(training.model.module.first.parameters(), lr=0.1, momentum=0.9)
    two = torch.optim.AdamW(biases, lr=0.1)
    of_both = tr.get_optimizer_state_dict(training.model, [one, two], options=ON_ALL)
    found["groups"] = [len(each["params"]) for each in of_both["param_groups"]]
    tr.set_optimizer_state_dict(training.model, [one, two], of_both)
    for group in expected["param_groups"]:
        group["params"] = [each for each in group["params"] if not each.startswith("last")]
    expected["state"].pop("last.weight")

    def set_it(strict: bool) -> None:
        options = tr.StateDictOptions(strict=strict)
        tr.set_optimizer_state_dict(training.model, training.optimizer, expected, options=options)

    found["strict"] = raised(lambda: set_it(True))
    set_it(False)
    found["left"] = [*training.states(ON_ALL)[1]["state"].keys() ^ expected["state"].keys()]
    return found


def _said_by_torch(state: Any) -> str:
    try:
        dcp.save(state, checkpoint_id="none", no_dist=True)
    except BaseException as error:  # torch's own exception is no Exception
        return str(error)
    return ""


def refused(rank: int) -> dict[str, str]:
    training = Training("fsdp")
    training.model.unshard()
    held = raised(training.states)
    training.model.reshard()
    model, _ = training.states(ON_ALL)
    wrong = {**model, "scale": torch.zeros(2)}
    flat = of_torch.StateDictOptions(flatten_optimizer_state_dict=True)
    from_first = of_torch.StateDictOptions(broadcast_from_rank0=True)
    set_it, get_it = tr.set_model_state_dict, tr.get_optimizer_state_dict
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    own = tr.StateDictOptions()
    sharded = tr.get_model_state_dict(training.model, options=own)
    training.train(0, 1)
    moments = get_it(training.model, training.optimizer, options=own)
    alone = {**model, "first.weight": sharded["inner.2.weight"]}
    return {
        "shape": raised(lambda: set_it(training.model, wrong)),
        "one rank": raised(lambda: set_it(training.model, wrong if rank == 1 else model)),
        "flat": raised(lambda: get_it(training.model, training.optimizer, options=flat)),
        "dict": raised(lambda: get_it(training.model, other, options={"cpu_offload": True})),
        "from first": raised(lambda: set_it(training.model, model, options=from_first)),
        "stranger": raised(lambda: get_it(training.model, other, options=ON_HOST)),
        "other part": raised(lambda: set_it(training.model, alone)),
        "parts for all": raised(lambda: set_it(training.model, sharded, options=FROM_FIRST)),
        "parts of moments": raised(
            lambda: tr.set_optimizer_state_dict(
                training.model, training.optimizer, moments, options=FROM_FIRST
            )
        ),
        "held": held,
        "no model": raised(lambda: tr.get_model_state_dict(3)),
        "by torch": _said_by_torch(sharded),
        "form": raised(
            lambda: tr.set_optimizer_state_dict(training.model, training.optimizer, {"a": 1})
        ),
        "alone": raised(lambda: training.states() if rank == 0 else tr.barrier()),
    }


def wrapped(rank: int) -> dict[str, str]:
    """The states of models whose layers, or all of them, are in torch's checkpoint_wrapper."""
    found = {}
    for kind in ("layers", "all"):
        torch.manual_seed(0)
        plain = Extra()
        model: Any = Extra()
        if kind == "all":
            model = checkpoint_wrapper(model)
        else:
            apply_activation_checkpointing(
                model, check_fn=lambda each: isinstance(each, torch.nn.Linear)
            )
        tr.fully_shard(model)
        tr.set_model_state_dict(model, plain.state_dict())
        given = tr.get_model_state_dict(model, options=ON_ALL)
        found[kind] = difference(given, plain.state_dict(), exact=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        state = tr.get_optimizer_state_dict(model, optimizer, options=ON_ALL)
        assert state["param_groups"][0]["params"] == ["inner.weight", "inner.bias"]
    return found


def on_others(rank: int) -> dict[str, Any]:
    """State of an optimizer that rank 0 has none of, and a cut parameter without elements."""
    whole = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    whole[0].requires_grad_(False)
    mesh = tr.init_device_mesh({"pp": tr.get_world_size()})
    loss: Any = {"loss_fn": lambda out, _: out.square().mean(), "cuts": ["1"]}
    pipeline = tr.PipelineParallel(whole, 2, mesh=mesh, **loss)
    optimizer = torch.optim.AdamW(pipeline.module.parameters())
    pipeline.step(torch.randn(4, 3), torch.randn(4, 3))
    optimizer.step()
    state = tr.get_optimizer_state_dict(pipeline, optimizer, options=ON_ALL)["state"]
    empty = torch.nn.Linear(3, 3)
    empty.nothing = torch.nn.Parameter(torch.zeros(0, 4))
    tr.fully_shard(empty)
    found = tr.get_model_state_dict(empty, options=ON_ALL)
    return {
        "kinds": sorted({type(each["exp_avg"]).__name__ for each in state.values()}),
        "names": sorted(state),
        "empty": tuple(found["nothing"].shape),
    }


class Adapted(torch.nn.Module):
    """A model with another's layers under other names, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Net()
        del self.encoder.last
        self.head = torch.nn.Linear(17, 2)


def partly(folder: Path, rank: int) -> dict[str, Any]:
    """Checkpoints of which a model takes a part."""
    training = Training("fsdp")
    training.train(0, 2)
    checkpointer = tr.checkpoint.Checkpointer(folder / "checkpoints")
    checkpointer.save(1, {"model": training.model, "optimizer": training.optimizer})
    before = training.states(ON_ALL)[0]
    model = tr.FullyShardedDataParallel(Adapted().double(), min_num_params=0)
    optimizer = torch.optim.AdamW(model.parameters())
    state, names = {"model": model, "optimizer": optimizer}, {"model/encoder.": "model/"}
    loaded = checkpointer.load(state, strict=False, names=names)
    assert loaded is not None
    after = tr.get_model_state_dict(model, options=ON_ALL)
    kept = {name: each for name, each in before.items() if not name.startswith("last.")}
    found: dict[str, Any] = {"values": difference(_encoder(after), kept, exact=True)}
    found["missing"], found["unexpected"] = loaded.missing_keys, loaded.unexpected_keys
    found["strict"] = raised(lambda: checkpointer.load({"model": model}, names=names))
    stages = Training("pp").model.module
    checkpointer.save(2, {"model": stages})
    again = checkpointer.load({"model": stages}, strict=False)
    assert again is not None
    found["stages"] = again.missing_keys + again.unexpected_keys
    return found


def _encoder(state: dict[str, Any]) -> dict[str, Any]:
    inner = {name: each for name, each in state.items() if name.startswith("encoder.")}
    return {name.removeprefix("encoder."): each for name, each in inner.items()}
