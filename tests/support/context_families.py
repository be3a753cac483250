"""Models of transformers whose sequences ranks have parts of, beside one process's."""

from __future__ import annotations

import importlib
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import torsh_runtime as tr

LENGTH, ROWS, STEPS = 24, 2, 10
_SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 30,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "attn_implementation": "reference",
    "experts_implementation": "eager",
}
_SHORT = {"head_dim": 4}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_GPT2 = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}


@dataclass(frozen=True)
class Family:
    """A model of transformers."""

    name: str
    options: dict[str, Any]
    head: str = "ForCausalLM"
    method: Any = "ring"
    scene: str = "plain"


FAMILIES = {
    "Llama": Family("Llama", {}),
    "Llama, padded": Family("Llama", {}, scene="right"),
    "Llama, packed": Family("Llama", {}, scene="packed", method="all_gather"),
    "Qwen 2, window": Family(
        "Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    ),
    "Qwen 3": Family("Qwen3", _SHORT, method="all_to_all", scene="left"),
    "Mistral, window": Family("Mistral", {"sliding_window": 6}, scene="right"),
    "Mistral, packed": Family("Mistral", {"sliding_window": 6}, scene="packed"),
    "Mixtral": Family("Mixtral", {"num_local_experts": 4}),
    "Gemma 2": Family("Gemma2", {"sliding_window": 5, "query_pre_attn_scalar": 4, **_SHORT}),
    "Gemma 3": Family(
        "Gemma3",
        {
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 4,
            **_SHORT,
        },
        scene="packed",
    ),
    "Phi-3": Family("Phi3", {"sliding_window": 7, "resid_pdrop": 0.0}),
    "gpt-oss": Family("GptOss", {"sliding_window": 5, "num_local_experts": 4, **_SHORT}),
    "gpt-oss, heads": Family(
        "GptOss",
        {"sliding_window": 5, "num_local_experts": 4, **_SHORT},
        method="all_to_all",
        scene="left",
    ),
    "GPT-2": Family("GPT2", _GPT2, head="LMHeadModel", scene="packed"),
    "GPT-NeoX": Family("GPTNeoX", {}),
    "OPT": Family("OPT", {"ffn_dim": 24, "dropout": 0.0, "word_embed_proj_dim": 16}, scene="right"),
    "BERT": Family("Bert", _STILL, head="ForMaskedLM", scene="right"),
    "ModernBERT": Family("ModernBert", {"local_attention": 8}, head="ForMaskedLM"),
}
"""Those that are right."""


def reference(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **named: Any
) -> tuple[Any, None]:
    """Attention as transformers' own, which computes softmax in float32 in places; with zeros for
    tokens that look at none, as torch's and flash attention have it."""
    several = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(several, 1), value.repeat_interleave(several, 1)
    scores = query @ key.transpose(2, 3) * scaling
    if named.get("softcap"):
        scores = named["softcap"] * torch.tanh(scores / named["softcap"])
    if mask is None:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool)
        mask = mask.tril() if module.is_causal else mask
    scores = scores.masked_fill(~mask, -torch.inf)
    if named.get("s_aux") is not None:
        sinks = named["s_aux"][:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]].nan_to_num()
    return (weights @ value).transpose(1, 2).contiguous(), None


def built(family: Family) -> Any:
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]  # nothing here needs it
    import transformers as hf

    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    hf.AttentionInterface.register("reference", reference)
    masks = importlib.import_module("transformers.masking_utils")
    masks.AttentionMaskInterface.register("reference", partial(masks.sdpa_mask))
    torch.manual_seed(0)
    kind = f"{family.name}TextConfig" if family.name == "Gemma3" else f"{family.name}Config"
    config = getattr(hf, kind)(**{**_SIZES, **family.options})
    model = getattr(hf, f"{family.name}{family.head}")(config)
    return model.double().train()


def batch(family: Family, step: int) -> dict[str, Any]:
    """Whole sequences."""
    random = torch.Generator().manual_seed(step)
    tokens = torch.randint(1, 30, (ROWS, LENGTH), generator=random)
    found: dict[str, Any] = {"input_ids": tokens, "labels": tokens.clone()}
    if family.head == "ForMaskedLM":
        found["labels"][torch.rand(tokens.shape, generator=random) > 0.3] = -100
    if family.scene == "packed":
        cuts = [[0, 5, 15], [0, 12]]
        starts = [max(c for c in row if c <= at) for row in cuts for at in range(LENGTH)]
        found["position_ids"] = torch.arange(LENGTH) - torch.tensor(starts).view(ROWS, LENGTH)
        for row, begins in enumerate(cuts):
            found["labels"][row, begins] = -100
    if family.scene in ("right", "left"):
        mask = torch.ones_like(tokens)
        mask[0, -7:] = 0
        found["attention_mask"] = mask if family.scene == "right" else mask.flip(1)
        found["labels"][found["attention_mask"] == 0] = -100
    return found


def inputs(given: dict[str, Any]) -> dict[str, Any]:
    """What is not about the loss."""
    ours = ("labels", "shift_labels", "num_items_in_batch")
    return {name: each for name, each in given.items() if name not in ours} | {"use_cache": False}


def one_process(model: Any, given: dict[str, Any], shift: bool) -> Any:
    scores, labels = model(**inputs(given)).logits, given["labels"]
    if shift:
        scores, labels = scores[:, :-1], labels[:, 1:]
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def apart(name: str, mesh: Any) -> float:
    """How far losses, norms of gradients and parameters are from one process's."""
    family = FAMILIES[name]
    shift, alone = family.head != "ForMaskedLM", built(family)
    model = built(family)
    tr.context_model(model, mesh, family.method)
    wrapped = tr.DistributedDataParallel(model)
    first = torch.optim.AdamW(alone.parameters(), lr=1e-2)
    second = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    far = []
    for step in range(STEPS):
        given = batch(family, step)
        expected = one_process(alone, given, shift)
        first.zero_grad()
        expected.backward()
        norm = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        first.step()
        own = tr.context_batch(given, mesh, shift)
        loss = tr.context_loss(wrapped(**inputs(own)).logits, own["shift_labels"], mesh)
        second.zero_grad()
        loss.backward()
        found = tr.clip_grad_norm_(wrapped, 0.1)
        second.step()
        mean = np.array([loss.item() / tr.get_world_size()])
        tr.all_reduce(mean)
        far += [mean[0] - expected.item(), float(found) - float(norm)]
    pairs = zip(alone.parameters(), model.parameters(), strict=True)
    far += [float((a - b).detach().abs().max()) for a, b in pairs]
    return float(np.abs(far).max())


def trained(mesh: Any) -> dict[str, float | str]:
    """By family how far it is from one process, where nothing is rounded to float32 on the way."""
    rounded = torch.Tensor.float
    torch.Tensor.float = lambda each: (  # type: ignore[method-assign]
        each if each.dtype is torch.float64 else rounded(each)
    )
    found: dict[str, float | str] = {}
    for name in FAMILIES:
        try:
            found[name] = apart(name, mesh)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found
