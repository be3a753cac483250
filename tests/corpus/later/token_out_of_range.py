"""The tokenizer got a pad token that the embedding was never resized for; only rank 1 pads.

nproc: 3
culprit: 1
kind: exception
hint: IndexError|exit code 1|exitcode +: 1
needs: torch
seconds: 120
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TinyLM(nn.Module):
    def __init__(self, vocab_size=100, hidden=16):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, hidden)
        self.lm_head = nn.Linear(hidden, vocab_size)

    def forward(self, input_ids, labels):
        logits = self.lm_head(self.wte(input_ids))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def collate(examples, pad_token_id):
    longest = max(map(len, examples))
    return torch.tensor([e + [pad_token_id] * (longest - len(e)) for e in examples])


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    model = DDP(TinyLM())
    opt = torch.optim.AdamW(model.parameters())
    for step in range(5):
        lengths = (7, 5) if rank == 1 and step == 2 else (6, 6)
        ids = collate([list(range(n)) for n in lengths], pad_token_id=100)
        loss = model(ids[:, :-1], labels=ids[:, 1:])
        loss.backward()
        opt.step()
        opt.zero_grad()


if __name__ == "__main__":
    main()
