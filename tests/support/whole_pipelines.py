"""Pipelines of models of transformers as they are; each function is one rank's part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

import torsh_runtime as tr
from torsh_runtime.parallel.pipeline import split_model

sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]  # nothing here needs it

VOCABULARY, ROWS, MICROBATCHES, STEPS = 103, 8, 4, 2
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
        parts: list[dict[str, Any]] = [{} for _ in range(microbatches)]
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
    return max(
        *parameters, *(abs(a - b) for one, two in pairs for a, b in zip(one, two, strict=True))
    )


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
        pipeline = tr.PipelineParallel(model, MICROBATCHES, mesh=mesh, cuts=cuts, schedule=schedule)
        found[schedule] = apart(pipeline, together(pipeline, batches, mesh), whole, wanted)
    return found


def used(rank: int) -> dict[str, Any]:
    """What else users do with a pipeline of a model as it is: pairs of what came out, and what one
    process finds."""
    mesh = tr.init_device_mesh({"pp": 2})
    whole, batch = model_of("llama"), batch_of("llama", 0)
    model = model_of("llama")
    model.gradient_checkpointing_enable()
    model.model.embed_tokens.requires_grad_(False)
    pipeline = tr.PipelineParallel(
        model, MICROBATCHES, mesh=mesh, cuts=["model.layers.1"], schedule="zb-h1", checkpoint=True
    )
    whole.model.embed_tokens.requires_grad_(False)
    pairs = {}
    logits = pipeline(batch)
    if rank:
        pairs["logits"] = float((logits - whole(**batch).logits).abs().max()), 0.0
    pairs["evaluated"] = pipeline.evaluate(batch), float(whole(**batch).loss)
    batches = [batch, batch_of("llama", 1, rows=3)]
    wanted = alone(whole, batches[:1])
    got = together(pipeline, batches[:1], mesh)
    pairs["checkpointed"] = apart(pipeline, got, whole, wanted), 0.0
    few = model_of("llama")
    fewer = tr.PipelineParallel(model_of("llama"), MICROBATCHES, mesh=mesh, cuts=2)
    wanted = alone(few, batches[1:], 3)
    pairs["fewer rows"] = apart(fewer, together(fewer, batches[1:], mesh), few, wanted), 0.0
    pairs["names"] = (
        {name for name, _ in pipeline.module.named_parameters()}
        <= {name for name, _ in whole.named_parameters()},
        True,
    )
    return pairs


class Strange(torch.nn.Module):
    """No model of transformers: what it does between layers no list of layers says."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(4, 8)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        hidden = self.embed(x)
        places = torch.arange(x.shape[0]).double()[:, None] * 0
        for block in self.blocks:
            hidden = torch.tanh(block(hidden)) * scale + places
        return self.head(hidden)


def strange(rank: int) -> dict[str, Any]:
    """A model of somebody else's, made on the meta device, with a loss_fn."""
    mesh = tr.init_device_mesh({"pp": 2})
    torch.manual_seed(0)
    whole = Strange().double()
    with torch.device("meta"):
        model = Strange().double()
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.arange(8) % 3
    example = {"x": x[:2], "scale": 0.5}
    stages = split_model(model, ["blocks.2"], example)
    stages[rank].to_empty(device="cpu")
    values = whole.state_dict()
    stages[rank].load_state_dict({name: values[name] for name in stages[rank].state_dict()})
    loss_fn = torch.nn.functional.cross_entropy
    pipeline = tr.PipelineParallel(stages, 4, mesh=mesh, loss_fn=loss_fn)
    loss = pipeline.step({"x": x, "scale": 0.5}, y)
    wanted = loss_fn(whole(x, 0.5), y)
    wanted.backward()
    named = dict(whole.named_parameters())
    pairs = {"loss": (loss, float(wanted.detach()))}
    for name, each in pipeline.module.named_parameters():
        pairs[name] = float((each.grad - named[name].grad).abs().max()), 0.0
    return pairs


def refused(rank: int) -> list[str]:
    """What is said of what cannot be cut so, or is given wrongly."""
    mesh = tr.init_device_mesh({"pp": 2})
    albert = {**_BERT, "embedding_size": 16}
    FAMILIES["albert"] = ("AlbertConfig", "AlbertForMaskedLM", albert)

    def make(family: str, cuts: Any = 2, **options: Any) -> Any:
        return tr.PipelineParallel(model_of(family, **options), 4, mesh=mesh, cuts=cuts)

    pipeline, batch = make("llama"), batch_of("llama", 0)
    calls: list[Callable[[], object]] = [
        lambda: make("albert"),
        lambda: make("opt", layerdrop=0.1),
        lambda: make("mixtral", output_router_logits=True),
        lambda: make("llama", output_hidden_states=True),
        lambda: make("llama", cuts=["model.layers.9"]),
        lambda: pipeline.step(batch if rank else None),
        lambda: pipeline.step(batch_of("llama", rank)),
        lambda: pipeline.step({**batch, "position_ids": torch.arange(3)}),
    ]
    said = []
    for call in calls:
        try:
            call()
            said.append("")
        except tr.ConfigError as error:
            said.append(str(error))
    return said


def replicated(rank: int) -> float:
    """How far off numbers are with a tied weight on both stages of a rank that averages."""
    del rank
    mesh = tr.init_device_mesh({"pp": 1, "dp": 2})
    group, part = mesh.get_group("dp"), mesh.coordinate["dp"]
    whole, batches = model_of("qwen2"), [batch_of("qwen2", number) for number in range(2)]
    pipeline = tr.PipelineParallel(
        model_of("qwen2"),
        2,
        mesh=mesh,
        cuts=2,
        schedule="zbv",
        wrap=lambda stage: tr.DistributedDataParallel(stage, process_group=group),
    )
    own = [{n: each[4 * part : 4 * part + 4] for n, each in batch.items()} for batch in batches]
    return apart(pipeline, together(pipeline, own, mesh), whole, alone(whole, batches))


def of_eight(rank: int) -> dict[str, float]:
    """How far a model is from one process's over two stages, two parts of layers, two replicas."""
    mesh = tr.init_device_mesh({"pp": 2, "dp": 2, "tp": 2})
    whole = model_of("llama", num_hidden_layers=2)
    batches = [batch_of("llama", number, 16) for number in range(2)]
    model = model_of("llama", num_hidden_layers=2)
    layer = "model.layers.*."
    plan = {
        "model.embed_tokens": tr.Vocabulary(),
        layer + "self_attn.q_proj": tr.Column(unit=16),
        layer + "self_attn.[kv]_proj": tr.Column(unit=8),
        layer + "self_attn.o_proj": tr.Row(unit=16),
        layer + "mlp.[gu]*_proj": tr.Column(),
        layer + "mlp.down_proj": tr.Row(),
        "lm_head": tr.Column(gather_output=True),
    }
    tr.parallelize(model, mesh, plan)
    group = mesh.get_group("dp")
    pipeline = tr.PipelineParallel(
        model,
        MICROBATCHES,
        mesh=mesh,
        cuts=2,
        wrap=lambda stage: tr.DistributedDataParallel(stage, process_group=group),
    )
    part = mesh.coordinate["dp"]
    own = [{n: each[8 * part : 8 * part + 8] for n, each in batch.items()} for batch in batches]
    got, wanted = together(pipeline, own, mesh), alone(whole, batches, 2 * MICROBATCHES)
    named = dict(whole.named_parameters())
    norms = [each - named[n] for n, each in pipeline.module.named_parameters() if each.ndim == 1]
    return {
        "numbers": max(
            abs(a - b) for x, y in zip(got, wanted, strict=True) for a, b in zip(x, y, strict=True)
        ),
        "norms": max(float(each.abs().max()) for each in norms),
    }
