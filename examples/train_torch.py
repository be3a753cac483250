"""Trains the GPT of train_gpt.py in torch, on one or several processes, with the same options.

    torshrun --nproc-per-node 2 examples/train_torch.py --steps 500 --checkpoint checkpoints/gpt.pt
    torshrun --nproc-per-node 2 examples/train_torch.py --sample 300

Gradients are averaged by torsh_runtime's DistributedDataParallel, see data_parallel() there. Needs
torch.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from gpt import Text, standard_library
from torch import nn
from torch.nn import functional as F  # noqa: N812
from train_gpt import data_parallel, main, mean, rate


class GPT(nn.Module):
    """Predicts each next character."""

    def __init__(self, vocabulary: int, context: int, layers: int, heads: int, embed: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, embed), nn.Embedding(context, embed)
        blocks = [
            nn.TransformerEncoderLayer(
                embed, heads, 4 * embed, 0.0, F.gelu, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        ]
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(embed)
        self.head = nn.Linear(embed, vocabulary, bias=False)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Scores (N, length, vocabulary) of what follows each of the characters (N, length)."""
        length = characters.shape[-1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(characters) + self.positions(torch.arange(length))
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return self.head(self.norm(x))


class Training:
    """All that a step changes, and its way to disk and back."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.options = options
        self.text = Text(standard_library(), options.seed)
        self.model = GPT(
            len(self.text.alphabet), options.context, options.layers, options.heads, options.embed
        )
        self.trained, self.share = data_parallel(self.model, options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: rate(step, options.steps)
        )
        self.losses: list[float] = []

    def step(self) -> None:
        """One update of the model."""
        size, context = self.options.batch, self.options.context
        pieces = self.text.batch(len(self.losses), size, context, self.share)
        inputs, targets = map(torch.from_numpy, pieces)
        loss = F.cross_entropy(self.trained(inputs).flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(mean(loss.item()))

    @torch.no_grad()
    def odds(self, written: np.ndarray) -> np.ndarray:
        """How likely each character is to come after (1, length) of them."""
        return self.model(torch.from_numpy(written))[0, -1].double().softmax(-1).numpy()

    def save(self, path: Path) -> None:
        """Write a checkpoint so that at any moment the old or the new one is there, whole; the
        first rank does. All ranks call it."""
        if self.share.start:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        state = {name: part.state_dict() for name, part in parts.items()}
        with partial.open("wb") as file:
            torch.save({**state, "losses": self.losses}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.losses = state["losses"]


if __name__ == "__main__":
    main(Training)
