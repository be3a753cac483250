"""Models of transformers that attend by context_attention; each function is one rank's part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from support import context_families
from support.ddp_faults import raised

import torsh_runtime as tr

LENGTH = 16
_SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 20}
_TOWERS = {"text_config": _SIZES, "vision_config": {"image_size": 8, "patch_size": 4}}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def _transformers() -> Any:
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]  # nothing here needs it
    import transformers as hf

    hf.logging.set_verbosity_error()
    return hf


def _mistral(**options: Any) -> Any:
    torch.manual_seed(0)
    hf = _transformers()
    options = {"sliding_window": None, "attn_implementation": "eager"} | options
    return hf.MistralForCausalLM(hf.MistralConfig(**_SIZES, **_HEADS, **options)).eval()


def _batch() -> dict[str, Any]:
    return {"input_ids": torch.arange(2 * LENGTH).view(2, LENGTH) % 20}


def _attended(mesh: Any) -> list[float]:
    """How far models are from one process's, whose attention is set by its name alone."""
    name = tr.register_context_attention(mesh)
    padded = torch.ones(2, LENGTH, dtype=torch.long)
    padded[1, -5:] = 0
    scenes = [{}, {"window": 6}, {"window": LENGTH}, {"attention_mask": padded}]
    found = []
    for scene in scenes:
        window = scene.pop("window", None)
        alone, model = _mistral(sliding_window=window), _mistral(sliding_window=window)
        model.set_attn_implementation(name)
        batch = _batch() | scene
        with torch.no_grad():
            expected = alone(**batch).logits
            own = model(**tr.context_batch(batch, mesh)).logits
        far = (tr.context_gather(own, mesh) - expected).abs().amax((0, 2))
        found.append(float(far[:-5].max() if scene else far.max()))
    return found


def _own_loss(mesh: Any) -> list[float]:
    """The loss of the model itself, and its gradients, beside one process's."""
    alone, model = _mistral(), _mistral()
    batch = _batch() | {"labels": _batch()["input_ids"].clone()}
    batch["labels"][0, :9] = -100
    expected = alone(**batch).loss
    expected.backward()
    tr.context_model(model, mesh)
    loss = model(**tr.context_batch(batch, mesh)).loss
    loss.backward()
    both = [loss.detach().clone(), model.lm_head.weight.grad]
    for each in both:
        tr.all_reduce(each)
        each /= 2
    pairs = zip(both, (expected, alone.lm_head.weight.grad), strict=True)
    return [float((a - b).detach().abs().max()) for a, b in pairs]


def _refused(mesh: Any) -> list[str]:
    """What each model or batch says that cannot be computed."""
    hf, whole = _transformers(), _batch()

    def fitted(model: Any) -> Any:
        tr.context_model(model, mesh)
        return model

    def run(model: Any, **named: Any) -> Any:
        return fitted(model)(**tr.context_batch(whole, mesh) | named)

    def deep(**rope: Any) -> Any:
        factors = {"short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}
        scaling = {"rope_type": "longrope", "rope_theta": 1e4, **factors} | rope
        options = {"rope_parameters": scaling, "original_max_position_embeddings": 14}
        return hf.Phi3ForCausalLM(hf.Phi3Config(**_SIZES, **_HEADS, **options, pad_token_id=0))

    def chunked() -> Any:
        options = {"attention_chunk_size": 4, "intermediate_size_mlp": 16, "pad_token_id": 0}
        config = hf.Llama4TextConfig(**_SIZES, **_HEADS, head_dim=4, **options)
        return hf.Llama4ForCausalLM(config)

    def hybrid() -> Any:
        sizes = {**_SIZES, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
        return hf.Lfm2ForCausalLM(hf.Lfm2Config(**sizes, **_HEADS))

    def counting() -> Any:
        options = {"num_attention_heads": 2, "attention_probs_dropout_prob": 0.0}
        sizes = {name: each for name, each in _SIZES.items() if "heads" not in name}
        return hf.RobertaForMaskedLM(hf.RobertaConfig(**sizes, **options, pad_token_id=1))

    own = whole["input_ids"].shape[1] // 2
    mask = torch.ones(2, 1, own, own, dtype=torch.bool)
    scenes: list[Callable[[], Any]] = [
        lambda: fitted(hf.BloomForCausalLM(hf.BloomConfig(hidden_size=16, n_layer=1, n_head=2))),
        lambda: fitted(hf.T5ForConditionalGeneration(hf.T5Config(d_model=16, num_layers=1))),
        lambda: fitted(hf.FNetForMaskedLM(hf.FNetConfig(hidden_size=16, num_hidden_layers=1))),
        lambda: fitted(hybrid()),
        lambda: run(hf.DogeForCausalLM(hf.DogeConfig(**_SIZES, **_HEADS, pad_token_id=0))),
        lambda: run(_mistral(attention_dropout=0.1).train()),
        lambda: run(_mistral(), position_ids=None),
        lambda: run(_mistral(), position_ids=torch.arange(own)[None]),
        lambda: run(_mistral(), attention_mask=torch.ones(2, LENGTH)),
        lambda: run(_mistral(), attention_mask=mask),
        lambda: run(deep()),
        lambda: run(chunked()),
        lambda: run(_mistral(), position_bias=mask),
        lambda: run(counting()),
        lambda: fitted(hf.CLIPModel(hf.CLIPConfig(**_TOWERS))),
        lambda: fitted(torch.nn.Linear(1, 1)),
        lambda: tr.context_batch({"tokens": 1}, mesh),
        lambda: tr.context_batch(whole | {"attention_mask": mask}, mesh),
        lambda: tr.context_batch(whole | {"cu_seq_lens_q": torch.tensor([0, 3, 16])}, mesh),
        lambda: tr.context_loss(torch.zeros(1, own, 3), torch.full((1, own), -100), mesh),
    ]
    return [raised(scene) for scene in scenes]


def all_of_it(rank: int) -> dict[str, Any]:
    """By what is asked; in one launch, for transformers takes seconds to import."""
    _transformers()
    mesh = tr.init_device_mesh({"cp": 2})["cp"]
    return {
        "by name": _attended(mesh),
        "own loss": _own_loss(mesh),
        "refused": _refused(mesh),
        "families": context_families.trained(mesh),
    }
