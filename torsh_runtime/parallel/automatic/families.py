"""Data: how layers of families of models may be cut, by model type.

The words are those in which models of transformers describe themselves (`_tp_plan`); entries here
take precedence over these. Patterns are ends of names, in which * and ? match text between two
dots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Counts:
    """Names attributes by which attentions of a family count their heads, as Heads() takes them.
    Not every version of transformers has all of these.
    """

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
_LLAMA = {
    "embed_tokens": "embedding_rowwise",
    "self_attn.[qkv]_proj": "colwise",
    "self_attn.o_proj": "rowwise",
    "gate_proj": "colwise",
    "up_proj": "colwise",
    "down_proj": "rowwise",
    "lm_head": "colwise_gather_output",
}
_VIT = {
    "attention.[qkv]_proj": "colwise",
    "attention.o_proj": "rowwise",
    "mlp.fc1": "colwise",
    "mlp.fc2": "rowwise",
    "classifier": "colwise_gather_output",
}
_ALIKE: Mapping[str, tuple[str, ...]] = {
    "bart": (
        "blenderbot",
        "blenderbot-small",
        "m2m_100",
        "marian",
        "mbart",
        "mvp",
        "pegasus",
        "plbart",
    ),
    "bert": ("ernie", "megatron-bert"),
    "roberta": ("camembert", "data2vec-text", "xlm-roberta", "xlm-roberta-xl"),
    "vit": ("beit", "deit", "dinov2", "dinov2_with_registers", "ijepa", "vit_msn"),
}
"""For a model type, the types whose layers are cut in the same way."""
_Told = TypeVar("_Told")


def _with_alike(told: Mapping[str, _Told]) -> Mapping[str, _Told]:
    """Copy the entry of each family to the families that are alike."""
    also = {name: told[like] for like in _ALIKE if like in told for name in _ALIKE[like]}
    return {**also, **told}


_FAMILIES: Mapping[str, Mapping[str, str]] = {
    "albert": {
        "embeddings.word_embeddings": "embedding_rowwise",
        "attention.query": "colwise",
        "attention.key": "colwise",
        "attention.value": "colwise",
        "attention.dense": "rowwise",
        "albert_layers.*.ffn": "colwise",
        "albert_layers.*.ffn_output": "rowwise",
        "predictions.decoder": "colwise_gather_output",
        "predictions.bias": "colwise_gather_output",
    },
    "apertus": {"mlp.act_fn": "replicated_with_grad_allreduce"},
    "bamba": _LLAMA,
    "bart": _BART,
    "bert-generation": {
        **_BERT,
        "lm_head.decoder": "colwise_gather_output",
        "lm_head.bias": "colwise_gather_output",
    },
    "biogpt": {
        **_BART_LAYERS,
        "embed_tokens": "embedding_rowwise",
        "output_projection": "colwise_gather_output",
    },
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
    "distilbert": {
        "embeddings.word_embeddings": "embedding_rowwise",
        "attention.[qkv]_lin": "colwise",
        "attention.out_lin": "rowwise",
        "ffn.lin1": "colwise",
        "ffn.lin2": "rowwise",
        "vocab_projector": "colwise_gather_output",
    },
    "electra": {
        **_BERT,
        "generator_lm_head": "colwise_gather_output",
    },
    "falcon": _BLOOM,
    "falcon_h1": _LLAMA,
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
    "hunyuan_v1_dense": _LLAMA,
    "lfm2": {
        **_LLAMA,
        "self_attn.out_proj": "rowwise",
        "feed_forward.w1": "colwise",
        "feed_forward.w3": "colwise",
        "feed_forward.w2": "rowwise",
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
    "modernbert-decoder": {
        "tok_embeddings": "embedding_rowwise",
        "attn.[qkv]_proj": "colwise",
        "attn.Wo": "rowwise",
        "mlp.Wi": "packed_colwise",
        "mlp.Wo": "rowwise",
        "mlp.drop": "dropout_colwise",
        "decoder": "colwise_gather_output",
    },
    "openai-gpt": {
        "tokens_embed": "embedding_rowwise",
        "attn.c_attn": "packed_heads",
        "attn.c_proj": "rowwise",
        "mlp.c_fc": "colwise",
        "mlp.c_proj": "rowwise",
        "lm_head": "colwise_gather_output",
    },
    "opt": {
        "embed_tokens": "embedding_rowwise",
        "self_attn.[qkv]_proj": "colwise",
        "self_attn.out_proj": "rowwise",
        "layers.*.fc1": "colwise",
        "layers.*.fc2": "rowwise",
        "lm_head": "colwise_gather_output",
    },
    "persimmon": {
        "embed_tokens": "embedding_rowwise",
        "self_attn.query_key_value": "colwise",
        "self_attn.dense": "rowwise",
        "mlp.dense_h_to_4h": "colwise",
        "mlp.dense_4h_to_h": "rowwise",
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
    "recurrent_gemma": {
        **_LLAMA,
        "temporal_block.[qkv]_proj": "colwise",
        "temporal_block.o_proj": "rowwise",
    },
    "rembert": {
        **_BERT,
        "cls.predictions.decoder": "colwise_gather_output",
    },
    "roformer": {
        **_BERT,
        "cls.predictions.decoder": "colwise_gather_output",
        "cls.predictions.bias": "colwise_gather_output",
    },
    "stablelm": _LLAMA,
    "t5": _T5,
    "vit": _VIT,
    "whisper": {
        **_BART_LAYERS,
        "embed_tokens": "embedding_rowwise",
        "proj_out": "colwise_gather_output",
    },
}
FAMILIES = _with_alike(_FAMILIES)

_HEADS = Counts(("num_heads", "embed_dim"))
_BERT_HEADS = Counts(("num_attention_heads", "all_head_size"))

_COUNTS: Mapping[str, Counts] = {
    "albert": _BERT_HEADS,
    "bart": _HEADS,
    "bert-generation": _BERT_HEADS,
    "biogpt": _HEADS,
    "bert": _BERT_HEADS,
    "bloom": Counts(("num_heads",), inputs={"alibi": 0}),
    "clip": _HEADS,
    "deberta-v2": _BERT_HEADS,
    "distilbert": Counts(("n_heads", "dim")),
    "electra": _BERT_HEADS,
    "falcon": Counts(
        ("num_heads",),
        ("num_kv_heads", "config.num_kv_heads"),
        {"alibi": 0, "attention_mask": 1},
    ),
    "gpt2": Counts(("num_heads", "split_size", "embed_dim")),
    "gpt_bigcode": Counts(("num_heads", "embed_dim", "split_size")),
    "modernbert": Counts(("num_heads", "all_head_size")),
    "modernbert-decoder": Counts(("num_heads", "all_head_size")),
    "openai-gpt": Counts(("n_head", "split_size")),
    "opt": _HEADS,
    "persimmon": _HEADS,
    "phi3": Counts(("config.num_attention_heads",), ("num_key_value_heads",)),
    "qwen2_moe": Counts(("num_heads", "hidden_size"), ("num_key_value_heads",)),
    "recurrent_gemma": Counts(("num_attention_heads",), ("num_key_value_heads",)),
    "rembert": _BERT_HEADS,
    "roberta": _BERT_HEADS,
    "roformer": _BERT_HEADS,
    "stablelm": Counts(("num_heads",), ("num_key_value_heads",)),
    "t5": Counts(("n_heads", "inner_dim")),
    "vit": _BERT_HEADS,
    "whisper": _HEADS,
}
COUNTS = _with_alike(_COUNTS)

OTHER_INPUTS = (
    "EncDecAttention",
    "encoder_attn",
    "crossattention",
    "pos_key_proj",
    "pos_query_proj",
)
"""Names, or parts of them, of attention layers whose input is not the hidden states of their stack;
layers of queries are excepted.
"""
DROPPING_FOR_ALL = ("pos_dropout",)
"""Names of modules within attentions that drop parts of values for all heads."""
PACKED_EXPERTS = ".gate_up_proj"
"""Last part of names of parameters that hold the experts' gates followed by the values they gate.
"""
OF_INPUTS = ("embed_dim", "hidden_dim", "hidden_size")
"""Names, in an attention's forward(), of the number of its input's features. The output may be
shaped by it, so that the attention computes all heads or none.
"""
FLAT: Mapping[str, tuple[str, ...]] = {"opt": ("fc1", "fc2")}
"""Names of layers whose input has rows and tokens as one dimension, by model type."""
_BETWEEN: Mapping[str, str] = {
    "bart": "dropout",
    "biogpt": "hidden_dropout_prob",
    "bloom": "hidden_dropout",
    "falcon": "hidden_dropout",
    "opt": "dropout",
    "whisper": "dropout",
}
BETWEEN = _with_alike(_BETWEEN)
"""Names, in configurations, of probabilities of dropout between layers that is not done by a
module.
"""
