"""Defines small models of transformers' families, and the batches on which they are trained."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

for _absent in ("torchvision", "torchao"):  # transformers would load them, but no model needs them
    sys.modules.setdefault(_absent, None)  # type: ignore[arg-type]
import transformers as hf  # noqa: E402

CLASSES, ROWS, LENGTH, WIDTH, HEADS = 100, 4, 16, 32, 4
Batch = dict[str, Tensor]

_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_PLAIN = {
    "vocab_size": CLASSES,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    **_TOKENS,
}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2, "head_dim": 8}
_LATENT = {
    **_PLAIN,
    "num_key_value_heads": HEADS,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
}
_STACKS = {
    "vocab_size": CLASSES,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
_IMAGES = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "image_size": 12,
    "patch_size": 4,
}
_DROPOUTS = (
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "dropout",
    "dropout_rate",
    "embd_pdrop",
    "hidden_dropout",
    "hidden_dropout_prob",
    "resid_pdrop",
)


def _numbers(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + step)


def _ids(step: int, length: int = LENGTH) -> Tensor:
    return torch.randint(3, CLASSES, (ROWS, length), generator=_numbers(step))


def causal(step: int) -> Batch:
    """Return a batch for a decoder that predicts the next tokens."""
    ids = _ids(step)
    return {"input_ids": ids, "labels": ids}


def masked(step: int) -> Batch:
    """Return padded rows in which some tokens are to be predicted."""
    ids = _ids(step)
    lengths = torch.tensor([LENGTH, LENGTH - 4, LENGTH - 7, LENGTH])
    mask = (torch.arange(LENGTH)[None] < lengths[:, None]).long()
    is_told = torch.arange(ids.numel()).view_as(ids) % 3 == 0
    labels = ids.masked_fill(~is_told | (mask == 0), -100)
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def counted(step: int) -> Batch:
    """Return a masked batch with positions as counted by models that have a row for padding."""
    batch = masked(step)
    return {**batch, "position_ids": torch.arange(1, LENGTH + 1).expand_as(batch["input_ids"])}


def translated(step: int) -> Batch:
    """Return a batch of pairs of sequences."""
    return {"input_ids": _ids(step), "labels": _ids(step + 500, 12)}


def pictures(step: int) -> Batch:
    """Return pictures, each with a class."""
    shape = (ROWS, 3, 12, 12)
    found = torch.randn(shape, generator=_numbers(step), dtype=torch.float64)
    return {"pixel_values": found, "labels": torch.arange(ROWS)}


def described(step: int) -> Batch:
    """Return pictures and texts. The last token is the one at which a text is read."""
    ids = _ids(step)
    ids[:, -1] = 2
    return {"input_ids": ids, "pixel_values": pictures(step)["pixel_values"]}


def spoken(step: int) -> Batch:
    """Return spectra and the spoken tokens."""
    found = torch.randn(ROWS, 8, 32, generator=_numbers(step), dtype=torch.float64)
    return {"input_features": found, "labels": _ids(step + 500, 12)}


def part_of(batch: Batch, place: int, count: int) -> Batch:
    """Return one of `count` parts of a batch's rows."""
    return {key: each.chunk(count)[place] for key, each in batch.items()}


def following(found: Any, batch: Batch) -> Tensor:
    """Return the loss of predicting the next tokens."""
    return _entropy(found.logits[:, :-1], batch["labels"][:, 1:])


def given(found: Any, batch: Batch) -> Tensor:
    """Return the loss of predicting the labels."""
    return _entropy(found.logits, batch["labels"])


def paired(found: Any, batch: Batch) -> Tensor:
    """Return the loss of matching pictures and texts."""
    places = torch.arange(len(batch["input_ids"]))
    each = (found.logits_per_text, found.logits_per_image)
    return sum((_entropy(scores, places) for scores in each), torch.zeros(())) / 2


def _entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy in the precision of the scores, which transformers' own losses
    lower.
    """
    return functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


@dataclass(frozen=True, slots=True)
class Family:
    """Describes one family of models."""

    title: str
    configuration: str
    model: str
    options: Mapping[str, Any]
    batch: Callable[[int], Batch]
    loss: Callable[[Any, Batch], Tensor] = given

    def built(self, dropout: float = 0.0, **options: Any) -> Any:
        """Build the model, with the same values each time, in float64.

        dropout: the probability of all dropouts.
        """
        config = getattr(hf, self.configuration)(**{**self.options, **options})
        for each in (config, *(getattr(config, name, None) for name in config.sub_configs)):
            for name in _DROPOUTS:
                if hasattr(each, name):
                    setattr(each, name, dropout)
        config._experts_implementation = "eager"  # the others lack float64
        torch.manual_seed(0)
        return getattr(hf, self.model)(config).double()

    def loss_of(self, model: Any, step: int, place: int = 0, count: int = 1) -> Tensor:
        """Return the loss of a batch, or of one of `count` parts of it."""
        batch = part_of(self.batch(step), place, count)
        return self.loss(model(**batch), batch)

    @property
    def is_known(self) -> bool:
        """Return whether this version of transformers has the family."""
        return hasattr(hf, self.model) and hasattr(hf, self.configuration)

    @property
    def deep(self) -> Mapping[str, Any]:
        """Return options that give the model four layers."""
        return {} if self.batch in (translated, described, spoken) else {"num_hidden_layers": 4}

    @property
    def generates(self) -> bool:
        """Return whether the model generates text."""
        return self.batch in (causal, translated, spoken)


def _clip() -> dict[str, Any]:
    return {"text_config": dict(_PLAIN), "vision_config": dict(_IMAGES), "projection_dim": 16}


def _decoder(title: str, name: str, options: Mapping[str, Any]) -> Family:
    return Family(title, f"{name}Config", f"{name}ForCausalLM", options, causal, following)


FAMILIES: Mapping[str, Family] = {
    "llama": _decoder("Llama", "Llama", _GROUPED),
    "qwen2": _decoder("Qwen 2", "Qwen2", {**_GROUPED, "tie_word_embeddings": True}),
    "qwen3": _decoder("Qwen 3", "Qwen3", {**_GROUPED, "tie_word_embeddings": True}),
    "qwen-moe": _decoder(
        "Qwen-MoE",
        "Qwen2Moe",
        {
            **_GROUPED,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "mistral": _decoder("Mistral", "Mistral", {**_GROUPED, "sliding_window": 6}),
    "mixtral": _decoder("Mixtral", "Mixtral", {**_GROUPED, "num_local_experts": 4}),
    "gemma2": _decoder("Gemma 2", "Gemma2", {**_GROUPED, "sliding_window": 6}),
    "gemma3": Family(
        "Gemma 3",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**_GROUPED, "sliding_window": 6},
        causal,
        following,
    ),
    "phi3": _decoder("Phi-3", "Phi3", {**_PLAIN, "num_key_value_heads": 2}),
    "gpt2": Family(
        "GPT-2",
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": CLASSES, "n_positions": 64, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS},
        causal,
        following,
    ),
    "gpt-neox": _decoder("GPT-NeoX", "GPTNeoX", _PLAIN),
    "falcon": _decoder("Falcon", "Falcon", {**_PLAIN, "num_ln_in_parallel_attn": 1}),
    "bloom": _decoder("BLOOM", "Bloom", _PLAIN),
    "opt": _decoder("OPT", "OPT", {**_PLAIN, "ffn_dim": 48, "word_embed_proj_dim": WIDTH}),
    "deepseek-v2": _decoder("DeepSeek V2", "DeepseekV2", _LATENT),
    "deepseek-v3": _decoder(
        "DeepSeek V3", "DeepseekV3", {**_LATENT, "n_group": 2, "topk_group": 1}
    ),
    "gpt-oss": _decoder(
        "gpt-oss",
        "GptOss",
        {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    ),
    "bert": Family("BERT", "BertConfig", "BertForMaskedLM", _PLAIN, masked),
    "roberta": Family("RoBERTa", "RobertaConfig", "RobertaForMaskedLM", _PLAIN, counted),
    "deberta": Family(
        "DeBERTa",
        "DebertaV2Config",
        "DebertaV2ForMaskedLM",
        {**_PLAIN, "relative_attention": True, "pos_att_type": "c2p|p2c"},
        masked,
    ),
    "t5": Family(
        "T5",
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": CLASSES,
            "d_model": WIDTH,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": HEADS,
            "decoder_start_token_id": 0,
        },
        translated,
    ),
    "bart": Family(
        "BART",
        "BartConfig",
        "BartForConditionalGeneration",
        {**_STACKS, "max_position_embeddings": 64},
        translated,
    ),
    "vit": Family(
        "ViT", "ViTConfig", "ViTForImageClassification", {**_IMAGES, "num_labels": 6}, pictures
    ),
    "clip": Family("CLIP", "CLIPConfig", "CLIPModel", _clip(), described, paired),
    "whisper": Family(
        "Whisper",
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            **_STACKS,
            **_TOKENS,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 32,
            "decoder_start_token_id": 1,
        },
        spoken,
    ),
    "mamba": Family(
        "Mamba",
        "MambaConfig",
        "MambaForCausalLM",
        {"vocab_size": CLASSES, "hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 8},
        causal,
        following,
    ),
    "modernbert": Family(
        "ModernBERT",
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {**_PLAIN, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 6},
        masked,
    ),
}
