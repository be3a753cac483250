"""What users of other libraries said was silently wrong, or stuck; each function is one rank's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import torsh_runtime as tr
from benchmarks.family_models import FAMILIES, Batch, Family, causal, following, hf
from benchmarks.family_training import (
    NORM,
    compared,
    in_float64,
    trained,
    with_adapters,
)

SIZES = {"vocab_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
STAR_CODER = Family(
    "StarCoder",
    "GPTBigCodeConfig",
    "GPTBigCodeForCausalLM",
    {"vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4},
    causal,
    following,
)
OLMOE = Family(
    "OLMoE",
    "OlmoeConfig",
    "OlmoeForCausalLM",
    {**SIZES, "intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
    causal,
    following,
)


def answers(rank: int) -> dict[str, str]:
    """By complaint "" for one process's numbers, the refusal, or what is wrong."""
    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    tp, cp = tr.init_device_mesh({"tp": 2}), tr.init_device_mesh({"cp": 2})
    pp = tr.init_device_mesh({"pp": 2})
    scenes: dict[str, Callable[[], str]] = {
        "one head of keys": lambda: against_one(STAR_CODER.built, STAR_CODER, tp),
        "experts in batches": lambda: against_one(in_batches, OLMOE, tp),
        "adapters, sequences": lambda: against_one(
            lambda: with_adapters(FAMILIES["llama"].built()), FAMILIES["llama"], tp, True
        ),
        "odd length, sequences": lambda: odd_sequence(tp),
        "prompts without labels": lambda: context_losses(cp, FAMILIES["llama"].built()),
        "few keys, all_to_all": lambda: context_losses(
            cp, FAMILIES["llama"].built(num_key_value_heads=1), method="all_to_all"
        ),
        "odd length, ring": lambda: context_losses(cp, FAMILIES["llama"].built(), 15),
        "accumulation in stages": lambda: accumulated(pp, 16, 16),
        "other lengths in stages": lambda: accumulated(pp, 16, 10),
        "torch's clipping": lambda: torchs_clipping(tp),
    }
    return {name: _said(scene) for name, scene in scenes.items()}


def _said(scene: Callable[[], str]) -> str:
    try:
        return scene()
    except tr.ConfigError as error:
        return f"refused: {error}"


def in_batches() -> Any:
    model = OLMOE.built()
    model.config._experts_implementation = "batched_mm"
    return model


def against_one(make: Callable[[], Any], family: Family, mesh: Any, sequence: bool = False) -> str:
    """Of a training of ten steps."""
    whole, model = make().train(), make().train()
    clip = partial(torch.nn.utils.clip_grad_norm_, [*whole.parameters()], NORM)
    expected = trained(whole, family, clip)
    tr.parallelize(model, mesh, tr.plan_of(model, mesh.size(), sequence=sequence))
    own = trained(model, family, lambda: tr.clip_grad_norm_(model, NORM, mesh))
    return compared(own, expected, tr.layouts_of(model), mesh)


def odd_sequence(mesh: Any) -> str:
    model = FAMILIES["llama"].built()
    tr.parallelize(model, mesh, tr.plan_of(model, 2, sequence=True))
    model(input_ids=torch.ones(2, 15, dtype=torch.long))
    return "no error"


def torchs_clipping(mesh: Any) -> str:
    model = tr.parallelize(FAMILIES["llama"].built(), mesh, "auto")
    FAMILIES["llama"].loss_of(model, 0).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
    return "no error"


@in_float64()
def context_losses(mesh: Any, model: Any, length: int = 16, **options: Any) -> str:
    """Losses and gradients of a batch most of whose labels are on one rank."""
    batch = {key: each[:, :length].clone() for key, each in causal(0).items()}
    batch["labels"][:, :11] = -100
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
    whole = torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:].flatten())
    whole.backward()
    expected = {name: each.grad for name, each in model.named_parameters()}
    model.zero_grad()
    tr.context_model(model, mesh, **options)
    replica: Any = tr.DistributedDataParallel(model, process_group=mesh.get_group())
    part = tr.context_batch(batch, mesh, True)
    given = {key: each for key, each in part.items() if "labels" not in key}
    loss = tr.context_loss(replica(**given).logits, part["shift_labels"], mesh)
    loss.backward()
    mean = loss.detach().clone()
    tr.all_reduce(mean, tr.ReduceOp.AVG)
    found = {name: each.grad for name, each in model.named_parameters()}
    return _apart(expected, found) or ("" if abs(mean - whole) < 1e-9 else "another loss")


@in_float64()
def accumulated(mesh: Any, *lengths: int) -> str:
    """Gradients of two batches, in stages with a weight that two of them have."""

    def batches() -> list[Batch]:
        found = []
        for step, length in enumerate(lengths):
            batch = {key: each[:, :length] for key, each in causal(step).items()}
            found.append(batch)
        return found

    family = FAMILIES["qwen2"]
    whole = family.built(num_hidden_layers=4)
    for batch in batches():
        following(whole(**batch), batch).backward()
    model = family.built(num_hidden_layers=4)
    pipeline = tr.PipelineParallel(model, 2, mesh=mesh, cuts=4, schedule="interleaved")
    for batch in batches():
        pipeline.step(batch)
    expected = {name: each.grad for name, each in whole.named_parameters(remove_duplicate=False)}
    found = {name: each.grad for name, each in pipeline.module.named_parameters()}
    return _apart(expected, found)


def _apart(expected: dict[str, Any], found: dict[str, Any]) -> str:
    told = [name for name, each in found.items() if (each - expected[name]).abs().max() > 1e-9]
    return f"other gradients of {', '.join(told)}" if told else ""
