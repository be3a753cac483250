"""How layers of families of models may be cut, by model type: data.

What models of transformers say of themselves (`_tp_plan`) is in the same words; what is here goes
before it. Patterns are names as they end, in which * and ? stand for what is between two dots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Counts:
    """What attentions of a family count their heads by, as Heads() takes it. Not every version of
    transformers has all of it."""

    cut: tuple[str, ...] = ()
    key_value_cut: tuple[str, ...] = ()
    inputs: Mapping[str, int] = field(default_factory=dict)


_BERT = {
    "embeddings.word_embeddings": "embedding_rowwise",
    "attention.self.query": "colwise",
    "attention.self.key": "colwise",
    "attention.self.value": "colwise",
    "attention.output.dense": "rowwise",
    "intermediate.dense": "colwise",
    "output.dense": "rowwise",
}
_BART_LAYERS = {
    "*_attn.[qkv]_proj": "colwise",
    "*_attn.out_proj": "rowwise",
    "layers.*.fc1": "colwise",
    "layers.*.fc2": "rowwise",
}
_BART = {
    "embed_tokens": "embedding_rowwise",
    "shared": "embedding_rowwise",
    "lm_head": "colwise_gather_output",
    **_BART_LAYERS,
}
_T5 = {
    "shared": "embedding_rowwise",
    "embed_tokens": "embedding_rowwise",
    "lm_head": "colwise_gather_output",
    "*Attention.[qkv]": "colwise",
    "*Attention.o": "rowwise",
    "*Attention.relative_attention_bias": "embedding_colwise",
    "DenseReluDense.wi": "colwise",
    "DenseReluDense.wi_?": "colwise",
    "DenseReluDense.wo": "rowwise",
    "DenseReluDense.dropout": "dropout_colwise",
}
_BLOOM = {
    "word_embeddings": "embedding_rowwise",
    "self_attention.query_key_value": "colwise",
    "self_attention.dense": "rowwise",
    "mlp.dense_h_to_4h": "colwise",
    "mlp.dense_4h_to_h": "rowwise",
    "lm_head": "colwise_gather_output",
}
_CLIP = {
    "token_embedding": "embedding_rowwise",
    "self_attn.[qkv]_proj": "colwise",
    "self_attn.out_proj": "rowwise",
    "mlp.fc1": "colwise",
    "mlp.fc2": "rowwise",
}
_DEEPSEEK = {
    "self_attn.q_proj": "colwise",
    "self_attn.q_b_proj": "colwise",
    "self_attn.kv_a_proj_with_mqa": "mla_kv_a_proj",
    "self_attn.kv_b_proj": "colwise",
    "self_attn.o_proj": "rowwise",
}
FAMILIES: Mapping[str, Mapping[str, str]] = {
    "bart": _BART,
    "bert": {
        **_BERT,
        "cls.predictions.decoder": "colwise_gather_output",
        "cls.predictions.bias": "colwise_gather_output",
    },
    "bloom": _BLOOM,
    "clip": _CLIP,
    "deberta": {
        **_BERT,
        "attention.self.in_proj": "colwise_gather_output",
        "attention.output.dense": "rowwise_split_input",
        "cls.predictions.decoder": "colwise_gather_output",
        "cls.predictions.bias": "colwise_gather_output",
    },
    "deberta-v2": {
        **_BERT,
        "attention.self.*_proj": "colwise",
        "attention.output.dense": "rowwise",
        "cls.predictions.decoder": "colwise_gather_output",
        "cls.predictions.bias": "colwise_gather_output",
    },
    "deepseek_v2": {**_DEEPSEEK, "self_attn.q_a_proj": "replicate"},
    "deepseek_v3": _DEEPSEEK,
    "falcon": _BLOOM,
    "gpt2": {
        "wte": "embedding_rowwise",
        "attn.c_attn": "packed_heads",
        "attn.c_proj": "rowwise",
        "crossattention.c_attn": "colwise_gather_output",
        "crossattention.q_attn": "colwise_gather_output",
        "crossattention.c_proj": "rowwise_split_input",
        "mlp.c_fc": "colwise",
        "mlp.c_proj": "rowwise",
        "lm_head": "colwise_gather_output",
    },
    "gpt_bigcode": {
        "wte": "embedding_rowwise",
        "attn.c_attn": "colwise",
        "attn.c_proj": "rowwise",
        "mlp.c_fc": "colwise",
        "mlp.c_proj": "rowwise",
        "lm_head": "colwise_gather_output",
    },
    "gpt_oss": {
        "self_attn.[qkv]_proj": "colwise",
        "self_attn.o_proj": "rowwise",
        "self_attn.sinks": "colwise",
        "mlp.experts": "moe_tp_experts",
        "experts.gate_up_proj": "interleaved_rowwise",
        "experts.gate_up_proj_bias": "interleaved_rowwise",
        "experts.down_proj": "colwise",
        "experts.down_proj_bias": "added_once",
    },
    "mamba": {
        "embeddings": "embedding_rowwise",
        "mixer": "summed",
        "mixer.A_log": "colwise",
        "mixer.D": "colwise",
        "mixer.conv1d.bias": "colwise",
        "mixer.conv1d.weight": "first_colwise",
        "mixer.dt_proj.bias": "colwise",
        "mixer.dt_proj.weight": "colwise",
        "mixer.in_proj.bias": "packed_colwise",
        "mixer.in_proj.weight": "packed_colwise",
        "mixer.out_proj.bias": "added_once",
        "mixer.out_proj.weight": "rowwise",
        "mixer.x_proj": "rowwise_spread",
        "lm_head": "colwise_gather_output",
    },
    "modernbert": {
        "tok_embeddings": "embedding_rowwise",
        "attn.Wqkv": "packed_heads",
        "attn.Wo": "rowwise",
        "mlp.Wi": "packed_colwise",
        "mlp.Wo": "rowwise",
        "mlp.drop": "dropout_colwise",
        "decoder": "colwise_gather_output",
    },
    "opt": {
        "embed_tokens": "embedding_rowwise",
        "self_attn.[qkv]_proj": "colwise",
        "self_attn.out_proj": "rowwise",
        "layers.*.fc1": "colwise",
        "layers.*.fc2": "rowwise",
        "lm_head": "colwise_gather_output",
    },
    "phi3": {
        "self_attn.qkv_proj": "packed_heads",
        "self_attn.o_proj": "rowwise",
        "mlp.gate_up_proj": "packed_colwise",
        "mlp.down_proj": "rowwise",
    },
    "roberta": {
        **_BERT,
        "lm_head.decoder": "colwise_gather_output",
        "lm_head.bias": "colwise_gather_output",
    },
    "t5": _T5,
    "vit": {
        "attention.[qkv]_proj": "colwise",
        "attention.o_proj": "rowwise",
        "mlp.fc1": "colwise",
        "mlp.fc2": "rowwise",
        "classifier": "colwise_gather_output",
    },
    "whisper": {
        **_BART_LAYERS,
        "embed_tokens": "embedding_rowwise",
        "proj_out": "colwise_gather_output",
    },
}

_HEADS = Counts(("num_heads", "embed_dim"))
_BERT_HEADS = Counts(("num_attention_heads", "all_head_size"))

COUNTS: Mapping[str, Counts] = {
    "bart": _HEADS,
    "bert": _BERT_HEADS,
    "bloom": Counts(("num_heads",), inputs={"alibi": 0}),
    "clip": _HEADS,
    "deberta-v2": _BERT_HEADS,
    "falcon": Counts(
        ("num_heads",),
        ("num_kv_heads", "config.num_kv_heads"),
        {"alibi": 0, "attention_mask": 1},
    ),
    "gpt2": Counts(("num_heads", "split_size", "embed_dim")),
    "gpt_bigcode": Counts(("num_heads", "embed_dim", "split_size")),
    "modernbert": Counts(("num_heads", "all_head_size")),
    "opt": _HEADS,
    "phi3": Counts(("config.num_attention_heads",), ("num_key_value_heads",)),
    "qwen2_moe": Counts(("num_heads", "hidden_size"), ("num_key_value_heads",)),
    "roberta": _BERT_HEADS,
    "t5": Counts(("n_heads", "inner_dim")),
    "vit": _BERT_HEADS,
    "whisper": _HEADS,
}

OTHER_INPUTS = (
    "EncDecAttention",
    "encoder_attn",
    "crossattention",
    "pos_key_proj",
    "pos_query_proj",
)
"""Names, or parts of them, of layers of attentions that are given something else than the hidden
states of their stack; the queries of attentions are not meant."""
HEAD_NORMS = ("q_norm", "k_norm")
"""Names of modules within attentions that normalise each head for itself, if they are as wide."""
DROPPING_FOR_ALL = ("pos_dropout",)
"""Names of modules within attentions that drop some of what is for all heads."""
PACKED_EXPERTS = ".gate_up_proj"
"""How names end of parameters in which gates of experts lie before what they let through."""
OF_INPUTS = ("embed_dim", "hidden_dim", "hidden_size")
"""Names that forward() of an attention has for the features of its input, and may shape its output
by, so that it computes all heads or none."""
FLAT: Mapping[str, tuple[str, ...]] = {"opt": ("fc1", "fc2")}
"""Names of layers that are given rows and their tokens as one dimension, by model type."""
BETWEEN: Mapping[str, str] = {
    "bart": "dropout",
    "bloom": "hidden_dropout",
    "falcon": "hidden_dropout",
    "opt": "dropout",
    "whisper": "dropout",
}
"""Probabilities, by names in configurations, of dropout between layers that no module does."""
