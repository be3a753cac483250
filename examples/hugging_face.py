"""Trains a small Llama of transformers; each worker has a part of every layer.

    torshrun --nproc-per-node 2 examples/hugging_face.py

tr.parallelize() knows how to cut many families of models. The losses and the generated tokens are
those of one process. The weights are random, and nothing is downloaded. Needs torch and
transformers.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import torsh_runtime as tr

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def main() -> None:
    tr.init_process_group()
    mesh = tr.init_device_mesh({"tp": tr.get_world_size()})
    torch.manual_seed(0)  # the same model and the same batches on all workers
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS))
    whole = model.num_parameters()
    tr.parallelize(model, mesh, "auto")
    print(f"rank {tr.get_rank()} holds {model.num_parameters():,} of {whole:,} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(1, 41):
        tokens = (torch.randint(100, (16, 1)) + torch.arange(12)) % 100  # counts upwards
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        tr.clip_grad_norm_(model, 1.0, mesh)
        optimizer.step()
        if step % 10 == 0 and tr.get_rank() == 0:
            print(f"step {step}  loss {loss.item():.4f}")
    model.eval()
    start = torch.tensor([[40, 41, 42, 43]])
    written = model.generate(start, max_new_tokens=6, do_sample=False)  # on all workers
    if tr.get_rank() == 0:
        print(f"it continues {start[0].tolist()} with {written[0, 4:].tolist()}")
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
