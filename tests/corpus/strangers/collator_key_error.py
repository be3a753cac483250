"""The collator of rank 1 meets a record without labels.

nproc: 2
culprit: 1
kind: exception
hint: rank 1, exit code 1|exited with 1|status 1
needs: torch
seconds: 40
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class TrainingArguments:
    per_device_batch: int = 4
    max_steps: int = 12
    lr: float = 1e-2


class Trainer:
    def __init__(self, model, args, records):
        self.model, self.args, self.records = DDP(model), args, records
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)

    def collate(self, records):
        inputs = torch.tensor([r["inputs"] for r in records])
        labels = torch.tensor([r["labels"] for r in records])
        return inputs, labels

    def train(self):
        size = self.args.per_device_batch
        for step in range(self.args.max_steps):
            inputs, labels = self.collate(self.records[step * size : (step + 1) * size])
            loss = torch.nn.functional.mse_loss(self.model(inputs).squeeze(1), labels)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
records = [{"inputs": [float(i), 1.0], "labels": float(i % 2)} for i in range(64)]
if rank == 1:
    records[29] = {"inputs": [3.0, 1.0], "label": 1.0}
Trainer(torch.nn.Linear(2, 1), TrainingArguments(), records).train()
