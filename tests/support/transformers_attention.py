"""Models of transformers that attend by context_attention; each function is one rank's part."""

from __future__ import annotations

import sys
from typing import Any

import torch
from support.ddp_faults import raised

import torsh_runtime as tr

LENGTH = 16


def attended(rank: int) -> tuple[float, list[str]]:
    """How far a model is from one process's, and what others raise."""
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]  # nothing here needs it
    import transformers as hf

    mesh = tr.init_device_mesh({"cp": 2})["cp"]
    name = tr.register_context_attention(mesh)
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH) % 20
    positions = torch.from_numpy(tr.context_positions(LENGTH, mesh))[None].expand(2, -1)

    def built(window: int | None = None) -> Any:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 20}
        config = hf.MistralConfig(**sizes, **heads, sliding_window=window)
        config._attn_implementation = "eager"
        return hf.MistralForCausalLM(config).eval()

    def logits(model: Any, **named: Any) -> Any:
        model.set_attn_implementation(name)
        shard = tr.context_shard(tokens, mesh)
        found = model(input_ids=shard, position_ids=positions, use_cache=False, **named).logits
        return tr.context_gather(found, mesh)

    with torch.no_grad():
        expected = built()(input_ids=tokens, use_cache=False).logits
        apart = float((logits(built()) - expected).abs().max())
        padded = torch.ones(2, LENGTH // 2, dtype=torch.long)
        padded[1, -1] = 0
        texts = [
            raised(lambda: logits(built(window=6))),
            raised(lambda: logits(built(window=LENGTH))),
            raised(lambda: logits(built(), attention_mask=padded)),
            raised(lambda: logits(built(), softcap=30.0)),
        ]
    return apart, texts
