"""Models of transformers that are cut by themselves; each function is one rank's part."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import replace
from typing import Any, cast

import torch

import torsh_runtime as tr
from benchmarks.family_columns import generating, tensor_parallel
from benchmarks.family_models import CLASSES, FAMILIES, WIDTH, hf
from benchmarks.family_replicas import parts, sharded
from benchmarks.family_training import compared, trained, whole, with_adapters

peft = importlib.import_module("peft")  # by now transformers is loaded, without torchvision

CUT = ("llama", "qwen3", "gpt2", "gpt-oss", "deberta", "t5")
ADAPTED = ("gpt2", "deepseek-v2")
SEQUENCES = ("qwen3", "bart", "qwen-moe")
_LLAMA = FAMILIES["llama"]
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "shared_expert_intermediate_size": 16,
}
OTHERS = {
    "cohere": ("Cohere", {"use_qk_norm": True}),
    "apertus": ("Apertus", {}),
    "persimmon": ("Persimmon", {}),
    "stablelm": ("StableLm", {"qk_layernorm": True}),
    "lfm2-moe": (
        "Lfm2Moe",
        {**_MOE, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"]},
    ),
    "phimoe": ("Phimoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-next": ("Qwen3Next", {**_MOE, **_LINEAR}),
}
"""Families that the benchmark has not: norms by head, activations with parameters, queries, keys
and values of one head after the other, a norm of each head's own, convolutions beside experts, and
linear attention."""
cast(dict[str, Any], FAMILIES).update(
    {
        name: replace(
            _LLAMA,
            configuration=f"{kind}Config",
            model=f"{kind}ForCausalLM",
            options={**_LLAMA.options, **options},
        )
        for name, (kind, options) in OTHERS.items()
    }
)


def right(rank: int) -> dict[str, str]:
    """What is wrong with families, by what is done with them."""
    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    mesh = tr.init_device_mesh({"tp": 2})
    found = {name: tensor_parallel(name, mesh) for name in (*CUT, *OTHERS)}
    found |= {f"{name}, sequences": tensor_parallel(name, mesh, True) for name in SEQUENCES}
    found["tokens"] = generating("falcon", mesh)
    found["checkpointing, eager"] = checkpointed(mesh)
    found |= {f"adapters, {name}": parts(name, mesh, with_adapters) for name in ADAPTED}
    found["adapters, shards"] = sharded("llama", mesh, with_adapters)
    found |= {f"dropout, {name}": dropping(name, mesh) for name in ("llama", "deberta")}
    found["dropout, gpt2, sequences"] = dropping("gpt2", mesh, True)
    return found


def dropping(name: str, mesh: Any, sequence: bool = False) -> str:
    """Which parameters are not the same on all ranks after steps with dropout, of odd heads."""
    odd = {"llama": {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}}
    model = FAMILIES[name].built(0.3, **odd.get(name, {})).train()
    tr.parallelize(model, mesh, tr.plan_of(model, 2, sequence=sequence))
    torch.manual_seed(1)
    trained(model, FAMILIES[name], lambda: tr.clip_grad_norm_(model, 0.5, mesh))
    cut = tr.layouts_of(model)
    own = {key: each.detach() for key, each in model.named_parameters() if key not in cut}
    told: list[Any] = [None, None]
    tr.all_gather_object(told, own)
    return ", ".join(key for key in own if not torch.equal(told[0][key], told[1][key]))


def checkpointed(mesh: Any) -> str:
    """With activations computed again, and attention without kernels."""
    family = FAMILIES["llama"]
    model = family.built().train()
    model.set_attn_implementation("eager")
    model.gradient_checkpointing_enable()
    tr.parallelize(model, mesh, "auto")
    found = trained(model, family, lambda: tr.clip_grad_norm_(model, 0.5, mesh))
    return compared(found, whole("llama"), tr.layouts_of(model), mesh)


def late_adapters(rank: int) -> dict[str, str]:
    """What is said of adapters that come after the cut, and of kinds that are not known."""
    mesh = tr.init_device_mesh({"tp": 2})
    late = tr.parallelize(FAMILIES["gpt2"].built(), mesh, "auto")
    FAMILIES["gpt2"].loss_of(late, 0)
    twice = tr.parallelize(with_adapters(FAMILIES["llama"].built()), mesh, "auto")
    names = ["q_proj", "o_proj"]
    config = peft.LoraConfig(target_modules=["q_proj"], use_dora=True)
    magnitudes = peft.get_peft_model(FAMILIES["llama"].built(), config)
    config = peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[])
    factors = peft.get_peft_model(FAMILIES["llama"].built(), config)
    return {
        "late": _told(lambda: with_adapters(late)),
        "twice": _told(lambda: twice.add_adapter("two", peft.LoraConfig(target_modules=names))),
        "magnitudes": _told(lambda: tr.parallelize(magnitudes, mesh, "auto")),
        "factors": _told(lambda: tr.parallelize(factors, mesh, "auto")),
    }


def changed(rank: int) -> dict[str, str]:
    """What is said of changes of a model that has been cut, and how far others are from one
    process's."""
    mesh = tr.init_device_mesh({"tp": 2})
    model, whole = (FAMILIES["llama"].built() for _ in range(2))
    tr.parallelize(model, mesh, "auto")
    layer, linear = model.model.layers[0], torch.nn.Linear(WIDTH, WIDTH, bias=False).double()
    changes: dict[str, Any] = {
        "resized": lambda: model.resize_token_embeddings(CLASSES + 10),
        "row": lambda: setattr(layer.mlp, "down_proj", linear),
        "column": lambda: setattr(layer.self_attn, "q_proj", linear),
        "weight": lambda: setattr(layer.mlp.up_proj, "weight", linear.weight),
        "wrapped": lambda: setattr(layer.mlp, "up_proj", Around(layer.mlp.up_proj)),
    }
    found = {name: _told(change) for name, change in changes.items()}
    clones = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.lm_head.weight = clones
    found["clipped"] = _told(lambda: torch.nn.utils.clip_grad_norm_([clones], 1.0))
    for each in (model, whole):
        each.lm_head = torch.nn.Linear(WIDTH, CLASSES, bias=False).double()
        torch.nn.init.ones_(each.lm_head.weight)
        each.model.layers[1].mlp = FAMILIES["llama"].built().model.layers[0].mlp
    losses = [FAMILIES["llama"].loss_of(each, 0).detach() for each in (model, whole)]
    found["replaced"] = "" if abs(losses[0] - losses[1]) < 1e-9 else f"{losses}"
    return found


class Around(torch.nn.Module):
    """What wrappers put in the place of a layer."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def refused(rank: int) -> dict[str, str]:
    """What others are told, with nothing changed."""
    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    mesh = tr.init_device_mesh({"tp": 2})
    styled, few = FAMILIES["llama"].built(), FAMILIES["llama"].built(intermediate_size=1)
    styled._tp_plan = {"layers.*.mlp.up_proj": "diagonal"}
    strange = torch.nn.Sequential(torch.nn.Linear(2, 2))
    experts = FAMILIES["mixtral"].built()
    for layer in experts.model.layers:  # a block that holds nothing but its router
        layer.experts, layer.mlp = layer.mlp.experts, layer.mlp.gate
    experts._tp_plan = {"model.layers.*.experts": "moe_tp_experts"}
    experts._tp_plan |= {"model.layers.*.experts.down_proj": "rowwise"}
    found = {
        "style": _told(lambda: tr.parallelize(styled, mesh, "auto")),
        "few": _told(lambda: tr.parallelize(few, mesh, "auto")),
        "strange": _told(lambda: tr.parallelize(strange, mesh, "auto")),
        "word": _told(lambda: tr.parallelize(strange, mesh, "automatic")),  # type: ignore[arg-type]
        "experts": _told(lambda: tr.plan_of(experts, 2, sequence=True)),
    }
    ids = torch.arange(8)[None]
    graded = FAMILIES["llama"].built()
    graded(input_ids=ids, labels=ids).loss.backward()
    found["gradient"] = _told(lambda: tr.parallelize(graded, mesh, "auto"))
    assert not any(tr.layouts_of(each) for each in (styled, few, strange, experts, graded))
    return found | _refused_later(mesh)


def _refused_later(mesh: Any) -> dict[str, str]:
    """What is said of that which is done with models that have been cut."""
    ids = torch.arange(8)[None]
    whole, parts = (FAMILIES["llama"].built() for _ in range(2))
    optimizer = torch.optim.AdamW(whole.parameters())
    whole(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tr.parallelize(whole, mesh, "auto")
    tr.parallelize(parts, mesh, tr.plan_of(parts, 2, sequence=True))
    whole(input_ids=ids, labels=ids).loss.backward()
    return {
        "state": _told(optimizer.step),
        "heads": _told(lambda: whole(input_ids=ids, output_attentions=True)),
        "tokens": _told(lambda: parts(input_ids=ids, output_hidden_states=True)),
    }


def _told(call: Any) -> str:
    try:
        call()
    except tr.ConfigError as error:
        return str(error)
    return "nothing"
