"""Models of transformers of which ranks have parts, by plans written by hand, beside one process;
each function is one rank's part."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import torch
from support.ddp_faults import raised
from support.lean_transformers import hf
from torch.utils.checkpoint import checkpoint

import torsh_runtime as tr
from torsh_runtime.parallel.layouts import cut, layouts_of
from torsh_runtime.parallel.tensor import Column, Cut, Heads, Part, Row, Scatter, Shared, Summed

VOCABULARY, WIDTH, INNER, HEAD, LENGTH, ROWS, STEPS = 43, 32, 24, 8, 12, 2, 10
Plan = dict[str, Any]


def _sizes(heads: int, keys: int) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": HEAD,
        "max_position_embeddings": 16,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def decoder(name: str, heads: int = 4, keys: int = 2, attention: str = "sdpa", **other: Any) -> Any:
    config = getattr(hf, f"{name}Config")
    kind = getattr(hf, f"{name.removesuffix('Text')}ForCausalLM")
    made = config(**(_sizes(heads, keys) | other))
    made._attn_implementation = attention
    made._experts_implementation = "eager"
    return kind(made)


def attention_plan(heads: int = 4, keys: int = 2, at: str = "model.layers.*.self_attn") -> Plan:
    return {
        f"{at}": Heads(heads, keys, groups=("num_key_value_groups",)),
        f"{at}.q_proj": Column(unit=HEAD, key_value_heads=keys),
        f"{at}.[kv]_proj": Column(unit=HEAD, query_heads=heads),
        f"{at}.o_proj": Row(unit=HEAD, key_value_heads=keys),
    }


MLP: Plan = {
    "model.layers.*.mlp.gate_proj": Column(),
    "model.layers.*.mlp.up_proj": Column(),
    "model.layers.*.mlp.down_proj": Row(),
}
ENDS: Plan = {"model.embed_tokens": tr.Vocabulary(), "lm_head": Column(gather_output=True)}
NORMS: Plan = {"model.layers.*.self_attn.[qk]_norm": Shared()}
DECODER: Plan = ENDS | attention_plan() | MLP


def sequence(plan: Plan, norms: str) -> Plan:
    """The same with parts of sequences between layers."""
    found: Plan = {}
    for name, entry in plan.items():
        if isinstance(entry, Heads):
            found[name] = Heads(4, 2, groups=entry.groups, sequence_dim=1)
        elif name.startswith("model.layers") and isinstance(entry, Column):
            found[name] = Column(
                unit=entry.unit,
                sequence_dim=1,
                query_heads=entry.query_heads,
                key_value_heads=entry.key_value_heads,
            )
        elif isinstance(entry, Row):
            found[name] = Row(True, entry.unit, 1, entry.key_value_heads)
        else:
            found[name] = entry
    found |= {
        "model.layers.0": Scatter(1),
        norms: Part(1),
        "model.norm": Part(1),
        "lm_head": Column(gather_output=True, sequence_dim=1),
    }
    return found


def experts(inner: int = INNER) -> Plan:
    at = "model.layers.*.mlp.experts"
    return {
        at: Summed(),
        f"{at}.gate_up_proj": Cut(1, sections=(inner, inner)),
        f"{at}.down_proj": Cut(2),
    }


def gpt2(**other: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": WIDTH, "n_layer": 2}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**({"n_head": 4} | sizes | drops | other)))


GPT2: Plan = {
    "transformer.wte": tr.Vocabulary(),
    "transformer.h.*.attn": Heads(4, cut=("num_heads", "split_size", "embed_dim")),
    "transformer.h.*.attn.c_attn": Column(sections=(WIDTH,) * 3, unit=HEAD),
    "transformer.h.*.attn.c_proj": Row(unit=HEAD),
    "transformer.h.*.mlp.c_fc": Column(),
    "transformer.h.*.mlp.c_proj": Row(),
    "lm_head": Column(gather_output=True),
}


def neox() -> Any:
    sizes = _sizes(4, 4)
    return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**sizes, hidden_dropout=0.0))


NEOX: Plan = {
    "gpt_neox.embed_in": tr.Vocabulary(),
    "gpt_neox.layers.*.attention.query_key_value": Column(unit=3 * HEAD),
    "gpt_neox.layers.*.attention.dense": Row(unit=HEAD),
    "gpt_neox.layers.*.mlp.dense_h_to_4h": Column(),
    "gpt_neox.layers.*.mlp.dense_4h_to_h": Row(),
    "lm_head": Column(gather_output=True),
}


def bloom() -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4}
    return hf.BloomForCausalLM(hf.BloomConfig(**sizes))


BLOOM: Plan = {
    "transformer.word_embeddings": tr.Vocabulary(),
    "transformer.h.*.self_attention": Heads(4, cut=("num_heads",), inputs={"alibi": 0}),
    "transformer.h.*.self_attention.query_key_value": Column(unit=3 * HEAD),
    "transformer.h.*.self_attention.dense": Row(unit=HEAD),
    "transformer.h.*.mlp.dense_h_to_4h": Column(),
    "transformer.h.*.mlp.dense_4h_to_h": Row(),
    "lm_head": Column(gather_output=True),
}


def falcon(keys: int, **other: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2}
    config = hf.FalconConfig(**sizes, num_attention_heads=4, num_kv_heads=keys, **other)
    return hf.FalconForCausalLM(config)


def falcon_plan(keys: int, **query_key_value: Any) -> Plan:
    at = "transformer.h.*.self_attention"
    inputs = {"alibi": -3, "attention_mask": -3}
    return {
        "transformer.word_embeddings": tr.Vocabulary(),
        at: Heads(4, keys, cut=("num_heads",), key_value_cut=("num_kv_heads",), inputs=inputs),
        f"{at}.query_key_value": Column(**query_key_value),
        f"{at}.dense": Row(unit=HEAD, key_value_heads=keys),
        "transformer.h.*.mlp.dense_h_to_4h": Column(),
        "transformer.h.*.mlp.dense_4h_to_h": Row(),
        "lm_head": Column(gather_output=True),
    }


def phi3_plan(keys: int) -> Plan:
    at = "model.layers.*.self_attn"
    sections = (4 * HEAD, keys * HEAD, keys * HEAD)
    return {
        **ENDS,
        at: Heads(
            4,
            keys,
            cut=("config.num_attention_heads",),
            key_value_cut=("num_key_value_heads",),
            groups=("num_key_value_groups",),
        ),
        f"{at}.qkv_proj": Column(sections=sections, unit=HEAD, query_heads=4),
        f"{at}.o_proj": Row(unit=HEAD, key_value_heads=keys),
        "model.layers.*.mlp.gate_up_proj": Column(sections=(INNER, INNER)),
        "model.layers.*.mlp.down_proj": Row(),
    }


def opt() -> Any:
    sizes = _sizes(4, 4) | {"ffn_dim": INNER, "dropout": 0.0, "word_embed_proj_dim": WIDTH}
    return hf.OPTForCausalLM(hf.OPTConfig(**sizes))


OPT: Plan = {
    "model.decoder.embed_tokens": tr.Vocabulary(),
    "model.decoder.layers.*.self_attn": Heads(4, cut=("num_heads",)),
    "model.decoder.layers.*.self_attn.[qkv]_proj": Column(unit=HEAD),
    "model.decoder.layers.*.self_attn.out_proj": Row(unit=HEAD),
    "model.decoder.layers.*.fc1": Column(),
    "model.decoder.layers.*.fc2": Row(),
    "lm_head": Column(gather_output=True),
}


def bert() -> Any:
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return hf.BertForMaskedLM(hf.BertConfig(**_sizes(4, 4), **drops))


BERT: Plan = {
    "bert.embeddings.word_embeddings": tr.Vocabulary(),
    "bert.encoder.layer.*.attention.self.query": Column(unit=HEAD),
    "bert.encoder.layer.*.attention.self.key": Column(unit=HEAD),
    "bert.encoder.layer.*.attention.self.value": Column(unit=HEAD),
    "bert.encoder.layer.*.attention.output.dense": Row(unit=HEAD),
    "bert.encoder.layer.*.intermediate.dense": Column(),
    "bert.encoder.layer.*.output.dense": Row(),
    "cls.predictions": None,
    "cls.predictions.bias": Cut(),
    "cls.predictions.decoder": Column(gather_output=True),
}
del BERT["cls.predictions"]


def t5() -> Any:
    sizes = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": HEAD, "d_ff": INNER}
    made = hf.T5Config(**sizes, num_layers=2, num_heads=4, dropout_rate=0.0, pad_token_id=0)
    made.decoder_start_token_id = 0
    return hf.T5ForConditionalGeneration(made)


def t5_plan() -> Plan:
    found: Plan = {}
    for stack, attentions in (
        ("encoder", ("0.SelfAttention",)),
        ("decoder", ("0.SelfAttention", "1.EncDecAttention")),
    ):
        for name in attentions:
            at = f"{stack}.block.*.layer.{name}"
            found[at] = Heads(4, cut=("n_heads", "inner_dim"))
            found[f"{at}.[qkv]"] = Column(unit=HEAD)
            found[f"{at}.o"] = Row(unit=HEAD)
        found[f"{stack}.block.*.layer.0.SelfAttention.relative_attention_bias"] = Column()
        at = f"{stack}.block.*.layer.{len(attentions)}.DenseReluDense"
        found |= {f"{at}.wi": Column(), f"{at}.wo": Row()}
    return found


def mamba() -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2}
    return hf.MambaForCausalLM(hf.MambaConfig(**sizes, state_size=4, pad_token_id=0))


MIXER = "backbone.layers.*.mixer"
MAMBA: Plan = {
    "backbone.embeddings": tr.Vocabulary(),
    MIXER: Summed(),
    f"{MIXER}.in_proj.weight": Cut(sections=(2 * WIDTH, 2 * WIDTH)),
    f"{MIXER}.conv1d.*": Cut(),
    f"{MIXER}.x_proj": Row(output_is_spread=True),
    f"{MIXER}.dt_proj.*": Cut(),
    f"{MIXER}.A_log": Cut(),
    f"{MIXER}.D": Cut(),
    f"{MIXER}.out_proj.weight": Cut(1),
    "lm_head": Column(gather_output=True),
}


def deepseek() -> Any:
    latent = {"q_lora_rank": 12, "kv_lora_rank": 8, "n_routed_experts": 4, "n_group": 1}
    widths = {"qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6, "topk_group": 1}
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": INNER, "first_k_dense_replace": 1}
    return decoder("DeepseekV3", 4, 4, head_dim=4, **latent, **widths, **experts)


LATENT = "model.layers.*.self_attn"
DEEPSEEK: Plan = {
    **ENDS,
    LATENT: Summed(),
    f"{LATENT}.*_a_*": Shared(),
    f"{LATENT}.q_b_proj.weight": Cut(unit=12),
    f"{LATENT}.kv_b_proj.weight": Cut(unit=14),
    f"{LATENT}.o_proj.weight": Cut(1, unit=6),
    "model.layers.0.mlp.gate_proj": Column(),
    "model.layers.0.mlp.up_proj": Column(),
    "model.layers.0.mlp.down_proj": Row(),
    "model.layers.1.mlp.experts": Summed(),
    "model.layers.1.mlp.experts.gate_up_proj": Cut(1, sections=(INNER, INNER)),
    "model.layers.1.mlp.experts.down_proj": Cut(2),
    "model.layers.1.mlp.shared_experts.gate_proj": Column(),
    "model.layers.1.mlp.shared_experts.up_proj": Column(),
    "model.layers.1.mlp.shared_experts.down_proj": Row(),
}
OSS = attention_plan() | {
    **ENDS,
    "model.layers.*.self_attn.sinks": Cut(key_value_heads=2),
    "model.layers.*.mlp.experts": Summed(),
    "model.layers.*.mlp.experts.gate_up_proj*": Cut(-1, unit=2),
    "model.layers.*.mlp.experts.down_proj": Cut(1),
    "model.layers.*.mlp.experts.down_proj_bias": Shared(divided=True),
}
MOE = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
QWEN_MOE = MOE | {
    "moe_intermediate_size": INNER,
    "shared_expert_intermediate_size": INNER,
    "decoder_sparse_step": 1,
}
SHARED_EXPERT: Plan = {
    "model.layers.*.mlp.shared_expert.gate_proj": Column(),
    "model.layers.*.mlp.shared_expert.up_proj": Column(),
    "model.layers.*.mlp.shared_expert.down_proj": Row(),
}
EAGER = {"attention": "eager", "sliding_window": 6, "query_pre_attn_scalar": 8}
QWEN3 = DECODER | NORMS
FAMILIES: dict[str, tuple[Callable[[], Any], Plan]] = {
    "llama": (lambda: decoder("Llama"), DECODER),
    "llama few keys": (
        lambda: decoder("Llama", 6, 1, hidden_size=48),
        DECODER | attention_plan(6, 1),
    ),
    "llama odd keys": (
        lambda: decoder("Llama", 6, 3, "eager", attention_bias=True, hidden_size=48),
        DECODER | attention_plan(6, 3),
    ),
    "llama sequence": (
        lambda: decoder("Llama"),
        sequence(DECODER, "model.layers.*.*_layernorm"),
    ),
    "qwen3": (lambda: decoder("Qwen3", tie_word_embeddings=True), QWEN3),
    "qwen3 sequence": (
        lambda: decoder("Qwen3"),
        sequence(QWEN3, "model.layers.*.*_layernorm"),
    ),
    "gemma2": (lambda: decoder("Gemma2", **EAGER), DECODER),
    "gemma3": (lambda: decoder("Gemma3Text", **EAGER), QWEN3),
    "mixtral": (lambda: decoder("Mixtral", **MOE), ENDS | attention_plan() | experts()),
    "qwen2 moe": (
        lambda: decoder("Qwen2Moe", **QWEN_MOE),
        ENDS | attention_plan() | experts() | SHARED_EXPERT,
    ),
    "gpt oss": (lambda: decoder("GptOss", attention="eager", **MOE), OSS),
    "phi3": (lambda: decoder("Phi3"), phi3_plan(2)),
    "phi3 few keys": (lambda: decoder("Phi3", 4, 1), phi3_plan(1)),
    "gpt2": (gpt2, GPT2),
    "gpt neox": (neox, NEOX),
    "bloom": (bloom, BLOOM),
    "falcon alibi": (
        lambda: falcon(4, alibi=True, multi_query=False),
        falcon_plan(4, unit=3 * HEAD),
    ),
    "falcon new": (
        lambda: falcon(2, new_decoder_architecture=True),
        falcon_plan(2, unit=4 * HEAD),
    ),
    "falcon one": (
        lambda: falcon(1, multi_query=True, parallel_attn=True),
        falcon_plan(1, sections=(4 * HEAD, HEAD, HEAD), unit=HEAD, query_heads=4),
    ),
    "opt": (opt, OPT),
    "bert": (bert, BERT),
    "t5": (t5, t5_plan()),
    "mamba": (mamba, MAMBA),
    "deepseek": (deepseek, DEEPSEEK),
}


def in_double() -> AbstractContextManager[None]:
    """A block in which models compute in 64 bits that ask for 32."""
    held = ExitStack()
    held.enter_context(patch.object(torch, "float32", torch.float64))
    held.enter_context(patch.object(torch.Tensor, "float", torch.Tensor.double))
    return held


def built(name: str) -> Any:
    torch.manual_seed(0)
    model = FAMILIES[name][0]().double()
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each), alpha=0.05)  # none is zeros, or ones
    return model


def loss_of(model: Any, step: int) -> Any:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=generator)
    given = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    logits = model(input_ids=tokens, use_cache=False, **given).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def beside_one_process(name: str, rank: int) -> dict[str, float]:
    """How far losses, norms and parameters are from one process's after some steps."""
    whole, model = built(name), built(name)
    mesh = tr.init_device_mesh({"tp": tr.get_world_size()})
    tr.parallelize(model, mesh, FAMILIES[name][1])
    apart = {"loss": 0.0, "norm": 0.0}
    optimizers = [torch.optim.AdamW(each.parameters(), lr=3e-3) for each in (whole, model)]
    for step in range(STEPS):
        for each in optimizers:
            each.zero_grad()
        with in_double():
            losses = [loss_of(each, step) for each in (whole, model)]
            for each in losses:
                each.backward()
        norms = [
            torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5),
            tr.clip_grad_norm_(model, 0.5, mesh),
        ]
        for each in optimizers:
            each.step()
        for key, (one, other) in {"loss": losses, "norm": norms}.items():
            apart[key] = max(apart[key], abs(float(one) - float(other)))
    told = layouts_of(model)
    for (path, one), (_, own) in zip(
        whole.named_parameters(), model.named_parameters(), strict=True
    ):
        expected = one.detach()
        if path in told:
            expected = cut(expected, told[path].piece({"tp": rank}))
        apart[path] = float((expected - own.detach()).abs().max())
    return apart


OMITTED = (
    ("qwen3", "model.layers.*.self_attn.[qk]_norm"),
    ("gpt oss", "model.layers.*.mlp.experts.down_proj_bias"),
    ("gpt oss", "model.layers.*.mlp.experts"),
    ("opt", "model.decoder.layers.*.self_attn"),
    ("llama few keys", "model.layers.*.self_attn.[kv]_proj"),
    ("llama sequence", "model.layers.*.*_layernorm"),
    ("bert", "cls.predictions.bias"),
    ("mamba", "backbone.layers.*.mixer"),
)


def without(name: str, gone: str, rank: int) -> str:
    """What a plan without one of its entries raises, in the first step at the latest."""
    model, mesh = built(name), tr.init_device_mesh({"tp": tr.get_world_size()})
    plan = {key: entry for key, entry in FAMILIES[name][1].items() if key != gone}
    return raised(lambda: _step(model, mesh, plan))


def _step(model: Any, mesh: Any, plan: Plan) -> None:
    tr.parallelize(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss_of(model, 0).backward()
    optimizer.step()


class Gain(torch.nn.Module):
    """What a stranger has in the place of a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain, self.dropped = torch.nn.Parameter(torch.ones(width)), torch.nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        return self.dropped(x * self.gain)


class Silent(torch.nn.Linear):
    """It may call what it inherits, and does not."""

    calls = False

    def forward(self, input: Any) -> Any:
        return 2 * super().forward(input) if self.calls else input.relu()


class Scaled(torch.nn.Linear):
    def forward(self, input: Any) -> Any:
        return 2 * super().forward(input)


class Mine(torch.nn.Module):
    """A linear layer of nobody's class."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x: Any) -> Any:
        return x @ self.weight


def strangers(rank: int) -> dict[str, float]:
    """Layers of classes that nobody knows, as they are copied and checkpointed."""

    def made() -> Any:
        torch.manual_seed(0)
        layers = [Gain(6), Mine(6, 8), torch.nn.GELU(), Scaled(8, 6), Gain(6)]
        return torch.nn.Sequential(*layers).double()

    whole, model = made(), made()
    plan = {"0": Part(1), "1": Column(sequence_dim=1), "3": Row(sequence_dim=1), "4": Part(1)}
    mesh = tr.init_device_mesh({"tp": tr.get_world_size()})
    tr.parallelize(model, mesh, plan)
    assert [type(each).__name__ for each in model] == [type(each).__name__ for each in whole]
    assert isinstance(model[1], Mine)
    own = slice(6 * rank, 6 * rank + 6)
    inputs = torch.randn(2, 6 * tr.get_world_size(), 6, dtype=torch.float64)
    expected = whole(inputs)
    expected.square().sum().backward()
    apart = {}
    for key, each in {"itself": model, "copied": copy.deepcopy(model)}.items():
        found = checkpoint(each, inputs[:, own], use_reentrant=False)
        found.square().sum().backward()
        apart[key] = float((found - expected[:, own]).abs().max())
        for name, parameter in each.named_parameters():
            wanted = dict(whole.named_parameters())[name].grad
            if wanted.shape == parameter.grad.shape:
                apart[f"{key} {name}"] = float((parameter.grad - wanted).abs().max())
    assert model[0].state_dict().keys() == whole[0].state_dict().keys()
    return apart | _by_channels(mesh)


def _by_channels(mesh: Any) -> dict[str, float]:
    """Of a convolution that has groups of its channels."""
    torch.manual_seed(1)
    kinds = torch.nn.Conv1d, torch.nn.Conv1d, torch.nn.ConvTranspose1d, torch.nn.Conv1d
    options = ((4, 12, 1), (12, 12, 3, 1, 1, 1, 12), (12, 12, 3, 1, 1, 0, 6), (12, 4, 1, 1, 0))
    layers = [kind(*each) for kind, each in zip(kinds, options, strict=True)]
    layers[3].bias = None
    whole = torch.nn.Sequential(*layers).double()
    model = copy.deepcopy(whole)
    told = {f"{each}.{name}": Cut(unit=2) for each in range(3) for name in ("weight", "bias")}
    tr.parallelize(model, mesh, {"": Summed(), **told, "3.weight": Cut(1, unit=2)})
    inputs = torch.randn(2, 4, 5, dtype=torch.float64)
    found, wanted = (each(inputs.requires_grad_()) for each in (model, whole))
    gradients = [torch.autograd.grad(each.square().sum(), inputs)[0] for each in (found, wanted)]
    return {
        "channels": float((found - wanted).abs().max()),
        "channels' gradient": float((gradients[0] - gradients[1]).abs().max()),
    }


class Sized(torch.nn.Module):
    """An attention that counts by the size of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.out(self.inner(x).view(x.shape))


def wrong(rank: int) -> list[str]:
    """What is said of entries that cannot be right."""
    linear, llama = torch.nn.Linear, decoder("Llama")
    silent = torch.nn.Sequential(Silent(4, 4))
    silent[0].calls = True
    tr.parallelize(silent, None, {"0": Column()})
    silent[0].calls = False
    nested = torch.nn.Sequential(linear(4, 4))
    sized = tr.parallelize(
        Sized(), None, {"": Heads(2), "inner": Column(unit=2), "out": Row(unit=2)}
    )
    calls: list[Callable[[], Any]] = [
        lambda: tr.parallelize(llama, None, {"model.norm": Column()}),
        lambda: silent(torch.ones(2, 4)),
        lambda: tr.parallelize(llama, None, {"model.layers.*.mlp": Row()}),
        lambda: tr.parallelize(llama, None, {"model.layers.*.self_attn": Heads(4, 2, ("heads",))}),
        lambda: tr.parallelize(
            llama, None, {"model.layers.*.self_attn": Heads(4, 4, groups=("num_key_value_groups",))}
        ),
        lambda: tr.parallelize(nested, None, {"": Summed(), "0": Row()}),
        lambda: tr.parallelize(nested, None, {"0.weight": Column()}),
        lambda: tr.parallelize(nested, None, {"0.bais": Cut()}),
        lambda: tr.parallelize(nested, None, {"0.weight": Cut(2)}),
        lambda: tr.parallelize(nested, None, {"0": Column(), "0.bias": Shared()}),
        lambda: tr.parallelize(linear(8, 4), None, {"": Column(unit=2, query_heads=3)}),
        lambda: sized(torch.ones(2, 4)),
        lambda: tr.parallelize(
            torch.nn.Conv1d(6, 6, 1, groups=3), None, {"weight": Cut(), "bias": Cut()}
        ),
    ]
    return [raised(call) for call in calls]


def dropped(rank: int) -> list[float]:
    """Losses of a model that drops weights of attention, of 3 heads; gradients agree, or the
    optimizer would say so."""
    width = 3 * HEAD
    told = GPT2 | {
        "transformer.h.*.attn": Heads(3, cut=("num_heads", "split_size", "embed_dim")),
        "transformer.h.*.attn.c_attn": Column(sections=(width,) * 3, unit=HEAD),
    }
    found = []
    for checkpoints in (False, True):
        torch.manual_seed(0)
        model = gpt2(n_embd=width, n_head=3, attn_pdrop=0.4, resid_pdrop=0.2).double()
        tr.parallelize(model, None, told).train()
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            found.append(float(loss))
    return found


def verified(rank: int) -> list[str]:
    """What verify() says of plans whose modules compute parts of sums."""
    mesh = tr.init_device_mesh({"tp": tr.get_world_size()})
    tokens = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % 40 + 3

    def loss(outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())

    with in_double():
        return [
            str(tr.verify(built(name), mesh, FAMILIES[name][1], tokens, tokens, loss=loss))
            for name in ("gpt oss", "mamba")
        ]
