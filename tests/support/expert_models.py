"""Models of transformers, and strangers', whose experts are spread; each function is one rank's."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from support.refusing import refused as refused_of
from torch import Tensor, nn

import torsh_runtime as tr
from benchmarks.family_columns import NORM, compared, expert_parallel, generated, trained, whole
from benchmarks.family_models import FAMILIES, hf
from torsh_runtime.parallel.dispatch.ranks import Ranks
from torsh_runtime.parallel.layouts import cut

SPREAD = ("qwen-moe", "deepseek-v3", "gpt-oss")


def on_data(experts: int = 2) -> Any:
    """Two ranks with batches of their own."""
    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    mesh = tr.init_device_mesh({"dp": 2})
    return mesh.view({"edp": 2 // experts, "ep": experts}, over=("dp",))


def right(rank: int) -> dict[str, str]:
    """What is wrong with families, by what is done with them."""
    mesh = on_data()
    found = {name: expert_parallel(name, mesh) for name in SPREAD}
    over = tr.init_device_mesh({"tp": 2}).view({"ep": 2}, over=("tp",))
    found["sequences"] = _of_same_tokens("deepseek-v3", over)
    found["sharded, checkpointing"] = _sharded("mixtral", mesh)
    return found


def _of_same_tokens(name: str, mesh: Any) -> str:
    """With parts of sequences between layers, and experts on the ranks that have these."""
    model = FAMILIES[name].built().train()
    tr.parallelize(model, mesh, tr.plan_of(model, 2, sequence=True, experts=True))
    found = trained(model, FAMILIES[name], lambda: tr.clip_grad_norm_(model, NORM, mesh))
    return compared(found, whole(name), tr.layouts_of(model), mesh)


def _sharded(name: str, mesh: Any) -> str:
    """With other parameters sharded, and activations computed again."""
    family, rank = FAMILIES[name], mesh.coordinate["dp"]
    model = family.built().train()
    model.gradient_checkpointing_enable()
    tr.parallelize(model, mesh, "auto")
    sharded: Any = tr.FullyShardedDataParallel(model, process_group=mesh["dp"])
    own = replace(family, batch=lambda step: _rows(family.batch(step), rank))
    found = trained(sharded, own, lambda: tr.clip_grad_norm_(sharded, NORM, mesh))
    losses = torch.tensor(found.losses, dtype=torch.float64)
    tr.all_reduce(losses, tr.ReduceOp.AVG)
    found = replace(found, losses=losses.tolist(), parameters={})
    return compared(found, whole(name), {}, mesh)


def _rows(batch: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
    return {key: each.chunk(2)[rank] for key, each in batch.items()}


def on_two_axes(rank: int) -> str:
    """Of four ranks, experts on all, layers cut in two, and batches."""
    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    mesh = tr.init_device_mesh({"dp": 2, "tp": 2}).view({"ep": 4}, over=("dp", "tp"))
    return expert_parallel("qwen-moe", mesh)


def written(rank: int) -> list[bool]:
    """Whether a model writes the same tokens, each rank others: the likeliest, and by beams."""
    family, mesh = FAMILIES["mixtral"], on_data()
    plain, model = family.built().eval(), family.built().eval()
    tr.parallelize(model, mesh, "auto")
    batch = {"input_ids": family.batch(0)["input_ids"][rank : rank + 1]}
    found = []
    for way in {}, {"num_beams": 2}:
        found.append(torch.equal(*(generated(each, batch, **way) for each in (plain, model))))
    return found


def verified(rank: int) -> tuple[bool, str]:
    """Whether verify() finds nothing, and what it finds where gradients are not averaged."""
    mesh, model = on_data(), FAMILIES["mixtral"].built().eval()
    batch = FAMILIES["mixtral"].batch(0)["input_ids"]
    options: Any = {"data_axes": ("dp",)}
    fine = tr.verify(model, mesh, "auto", batch, **options)
    with mock.patch.object(Ranks, "averaged", lambda self, weight: weight):
        wrong = tr.verify(model, mesh, "auto", batch, **options)
    return bool(fine), str(wrong)


def saved(rank: int) -> bool:
    """Whether a checkpoint comes back on ranks that have all experts."""
    family, mesh, other = FAMILIES["mixtral"], on_data(), on_data(1)
    model = tr.parallelize(family.built(), mesh, "auto")
    family.loss_of(model, rank).backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.step()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    tr.broadcast_object_list(folder, 0)
    keeper = tr.checkpoint.Checkpointer(Path(str(folder[0])))
    for each in model.parameters():  # of replicas that have stepped on their own
        if each.shape[0] != 2:
            tr.broadcast(each.data, 0)
    keeper.save(1, {"model": model, "mesh": mesh})
    again = tr.parallelize(family.built(dropout=0.0), other, "auto")
    keeper.load({"model": again, "mesh": other})
    lie, read = tr.layouts_of(model), dict(again.named_parameters())
    for name, each in model.named_parameters():
        found = read[name].detach()
        if name in lie:
            found = torch.from_numpy(cut(found.numpy(), lie[name].piece(mesh.coordinate)).copy())
        if not torch.equal(found, each):
            return False
    return True


def few_tokens(rank: int) -> dict[str, float]:
    """How far a block is from one process, where ranks have hardly any tokens, or equal scores."""
    found = {}
    for name, sizes in {"none": (0, 3), "one": (1, 0), "ties": (2, 3)}.items():
        block = FAMILIES["mixtral"].built().model.layers[0].mlp
        if name == "ties":
            nn.init.zeros_(block.gate.weight)
        single = copy.deepcopy(block)
        tr.parallelize(block, on_data(), {"experts": tr.Experts()})
        every = torch.arange(sum(sizes) * 32.0, dtype=torch.float64).sin().view(-1, 32)
        own = every.split(sizes)[rank].clone().requires_grad_()
        given = every.clone().requires_grad_()
        outputs, expected = block(own[None])[0], single(given[None])[0]
        for each in outputs, expected:
            each.sin().sum().backward()
        pairs = [(outputs, expected.split(sizes)[rank]), (own.grad, given.grad.split(sizes)[rank])]
        wanted = single.experts.down_proj.grad.chunk(2)[rank]
        pairs.append((block.experts.down_proj.grad * 2, wanted))
        found[name] = max(float((a - b).abs().sum()) for a, b in pairs)
    return found


def no_numbers(rank: int) -> list[int]:
    """How many tokens are no numbers: of a router that gives none, and of one token that is none,
    on one rank."""
    found = []
    for is_router in True, False:
        block = FAMILIES["mixtral"].built().model.layers[0].mlp
        tokens = torch.arange(128.0, dtype=torch.float64).sin().view(1, 4, 32)
        if is_router:
            nn.init.constant_(block.gate.weight, float("nan"))
        elif rank == 0:
            tokens[0, 2] = float("nan")
        tr.parallelize(block, on_data(), {"experts": tr.Experts()})
        outputs = block(tokens)
        outputs.sum().backward()
        found.append(int(outputs.isnan().any(-1).sum()))
    return found


def precisions(rank: int) -> dict[str, float]:
    """How far gradients of experts are from one process's, relative to the largest one."""
    found = {}
    for dtype in torch.float32, torch.bfloat16:
        for way in "eager", "batched_mm", "grouped_mm":
            model = FAMILIES["mixtral"].built().to(dtype).train()
            model.config._experts_implementation = way
            single = copy.deepcopy(model)
            tr.parallelize(model, on_data(), "auto")
            batch = FAMILIES["mixtral"].batch(0)
            model(**_rows(batch, rank)).loss.backward()
            single(**batch).loss.backward()
            own, every = (each.model.layers[0].mlp.experts.down_proj for each in (model, single))
            wanted = every.grad.chunk(2)[rank].double()
            apart = (own.grad.double() - wanted).abs().max() / wanted.abs().max()
            found[f"{str(dtype).removeprefix('torch.')} {way}"] = float(apart)
    return found


class Plain(nn.Module):
    """A stranger's experts."""

    def __init__(self, adds_input: bool = False) -> None:
        super().__init__()
        self.count, self.adds_input = 3, adds_input
        self.weight = nn.Parameter(torch.randn(3, 4, 4, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        where = nn.functional.one_hot(experts, self.count).to(x.dtype) * weights[..., None]
        found = torch.einsum("ti,eio->teo", x, self.weight).tanh() + self.bias
        summed = torch.einsum("teo,tke->to", found, where)
        return summed + x if self.adds_input else summed


def strange(rank: int) -> float:
    """How far a stranger's three experts are on two ranks from where they are together."""
    torch.manual_seed(0)
    single = Plain()
    model = nn.Sequential(copy.deepcopy(single))
    tr.parallelize(model, on_data(), {"0": tr.Experts(counts=("count",))})
    tokens = torch.randn(2, 5, 4, dtype=torch.float64)
    chosen, weights = torch.randint(3, (2, 5, 2)), torch.rand(2, 5, 2, dtype=torch.float64)
    outputs = model[0](tokens[rank], chosen[rank], weights=weights[rank])
    expected = single(tokens[rank], chosen[rank], weights[rank])
    return float((outputs - expected).abs().max())


def refused(rank: int) -> dict[str, str]:
    """What is said of what cannot be spread."""
    mesh, built = on_data(), {name: FAMILIES[name].built for name in ("llama", "mixtral")}
    experts = {"model.layers.*.mlp.experts": tr.Experts()}
    stages = tr.init_device_mesh({"pp": 2}).view({"ep": 2}, over=("pp",))
    beside = tr.init_device_mesh({"dp": 1, "tp": 2}).view({"ep": 2}, over=("dp", "tp"))
    other = built["mixtral"]()
    if rank:
        nn.init.ones_(other.model.layers[1].mlp.experts.down_proj)
    options = {"hidden_size": 32, "num_hidden_layers": 1, "num_local_experts": 4, "vocab_size": 9}
    options |= {"intermediate_size": 8, "intermediate_size_mlp": 8, "pad_token_id": 0}
    llama4 = hf.Llama4ForCausalLM(hf.Llama4TextConfig(**options))
    balanced = tr.parallelize(built["mixtral"](), mesh, "auto")
    ids = torch.arange(8)[None]

    def cut_by(model: Any, on: Any, plan: Any) -> Callable[[], Any]:
        return lambda: tr.parallelize(model, on, plan)

    named = {"counts": ("count",)}
    return refused_of(
        {
            "none": cut_by(built["llama"](), mesh, "auto"),
            "others": cut_by(llama4, mesh, "auto"),
            "no axis": cut_by(built["mixtral"](), mesh["dp"], experts),
            "a block": cut_by(built["mixtral"](), mesh, {"model.layers.*.mlp": tr.Experts()}),
            "cut": cut_by(built["mixtral"](), mesh, {**experts, "lm_head": tr.Column()}),
            "stages": cut_by(built["mixtral"](), stages, "auto"),
            "a part": cut_by(built["mixtral"](), beside["ep"], "auto"),
            "too few": cut_by(built["mixtral"](num_local_experts=1), mesh, experts),
            "values": cut_by(other, mesh, "auto"),
            "sums": cut_by(nn.Sequential(Plain(True)), mesh, {"0": tr.Experts(**named)}),
            "counts": cut_by(nn.Sequential(Plain()), mesh, {"0": tr.Experts()}),
            "torch's": lambda: nn.parallel.DistributedDataParallel(balanced),
            "a tuple": lambda: balanced(ids, output_router_logits=True, return_dict=False),
        }
    )
