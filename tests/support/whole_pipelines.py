"""Pipelines of models of transformers as they are; each function is one rank's part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

import torsh_runtime as tr

sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]  # nothing here needs it

VOCABULARY, ROWS, MICROBATCHES, STEPS = 103, 8, 4, 3
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_HEADS = {"head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BERT = {k: v for k, v in _SIZES.items() if k != "num_key_value_heads"} | _STILL
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"}
_DECODER = {**_SIZES, **_HEADS}
_BOTH = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BART = {
    **_BOTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "dropout": 0.0,
}
_GPT2 = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 4}
_GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _DECODER),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {**_DECODER, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**_DECODER, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**_DECODER, "sliding_window": 6}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**_DECODER, "sliding_window": 6}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {**_DECODER, "sliding_window": 6}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", _DECODER),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**_DECODER, **_EXPERTS}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT2),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _DECODER),
    "opt": ("OPTConfig", "OPTForCausalLM", {**_DECODER, "ffn_dim": 48, "dropout": 0.0}),
    "bloom": ("BloomConfig", "BloomForCausalLM", {**_BERT, "n_layer": 4, "n_head": 4}),
    "falcon": ("FalconConfig", "FalconForCausalLM", _BERT),
    "bert": ("BertConfig", "BertForMaskedLM", _BERT),
    "deberta": ("DebertaV2Config", "DebertaV2ForMaskedLM", {**_BERT, "relative_attention": True}),
    "vit": ("ViTConfig", "ViTForImageClassification", {**_BERT, "image_size": 16, "patch_size": 4}),
    "t5": ("T5Config", "T5ForConditionalGeneration", {**_BOTH, "dropout_rate": 0.0}),
    "bart": ("BartConfig", "BartForConditionalGeneration", _BART),
}
FAMILIES["t5"][2].update(d_kv=8, d_ff=48, num_layers=2, num_heads=4)
FAMILIES["vit"][2].update(num_labels=10)


def model_of(family: str, **options: Any) -> Any:
    """A small model with random weights, the same on all ranks."""
    import transformers

    config, model, sizes = FAMILIES[family]
    sizes = {**sizes, **options}
    implementation = sizes.pop("experts_implementation", None)
    made = getattr(transformers, config)(**sizes)
    if implementation is not None:  # others compute no float64
        made._experts_implementation = implementation
    torch.manual_seed(0)
    return getattr(transformers, model)(made).double()


def batch_of(family: str, number: int, rows: int = ROWS) -> dict[str, Any]:
    """With padding, and microbatches whose losses are of different numbers of tokens."""
    generator = torch.Generator().manual_seed(number)
    if family == "vit":
        pixels = torch.randn(rows, 3, 16, 16, generator=generator, dtype=torch.float64)
        return {"pixel_values": pixels, "labels": torch.arange(rows) % 10}
    tokens = torch.randint(3, VOCABULARY, (rows, 12), generator=generator)
    mask = torch.ones_like(tokens)
    mask[1, 9:] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    labels[0, :5] = labels[-1, :] = -100
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def counted(model: Any, labels: Any) -> int:
    """What a loss is the mean of."""
    is_causal = type(model).__name__.endswith(("CausalLM", "LMHeadModel"))
    return int(((labels[:, 1:] if is_causal and labels.ndim > 1 else labels) != -100).sum())


Numbers = list[tuple[float, float]]


def alone(model: Any, batches: list[Any], microbatches: int = MICROBATCHES) -> Numbers:
    """Losses and norms of one process that accumulates the same microbatches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for batch in batches:
        optimizer.zero_grad()
        whole, total = 0.0, counted(model, batch["labels"])
        parts = [{}for _ in range(microbatches)]
        for name, each in batch.items():
            for part, rows in zip(parts, each.tensor_split(microbatches), strict=True):
                part[name] = rows
        for part in parts:
            share = counted(model, part["labels"]) / total
            if share:
                loss = model(**part).loss
                (loss * share).backward()
                whole += float(loss.detach()) * share
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        found.append((whole, float(norm)))
    return found


def together(pipeline: Any, batches: list[Any], mesh: Any) -> Numbers:
    """The same of a pipeline."""
    optimizer = torch.optim.AdamW(pipeline.module.parameters(), lr=1e-2)
    found = []
    for batch in batches:
        optimizer.zero_grad()
        loss = pipeline.step(batch)
        norm = tr.clip_grad_norm_(pipeline.module, 0.5, mesh)
        optimizer.step()
        found.append((loss, float(norm)))
    return found


def apart(pipeline: Any, numbers: Numbers, model: Any, wanted: Numbers) -> float:
    """How far a pipeline's losses, norms and parameters are from one process's."""
    named = dict(model.named_parameters(remove_duplicate=False))
    own = pipeline.module.named_parameters(remove_duplicate=False)
    parameters = [float((each - named[name]).abs().max()) for name, each in own]
    pairs = zip(numbers, wanted, strict=True)
    return max(*parameters, *(abs(a - b) for one, two in pairs for a, b in zip(one, two, strict=True)))


def trained(rank: int, family: str) -> dict[str, float]:
    """How far a model is from one process's, by schedules."""
    del rank
    mesh = tr.init_device_mesh({"pp": 2})
    batches = [batch_of(family, number) for number in range(STEPS)]
    whole = model_of(family)
    wanted = alone(whole, batches)
    found = {}
    for schedule, cuts in (("1f1b", 2), ("zbv", 4)):
        model = model_of(family)
        pipeline = tr.PipelineParallel(
            model, MICROBATCHES, mesh=mesh, cuts=cuts, schedule=schedule
        )
        found[schedule] = apart(pipeline, together(pipeline, batches, mesh), whole, wanted)
    return found
