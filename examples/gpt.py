"""The GPT that train_gpt.py trains, and the text that it learns: Python's own standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn


class Block(nn.TransformerBlock):
    """A transformer's block, or one with experts in place of its MLP (Fedus et al., "Switch
    Transformers", 2021). How unevenly they are chosen goes from block to block.
    """

    def __init__(self, embed: int, heads: int, experts: tr.MixtureOfExperts | None) -> None:
        super().__init__(embed, heads, causal=True)
        self.has_experts = experts is not None
        if experts is not None:
            self.mlp = experts

    def forward(self, x: Any, balance: Any) -> Any:
        """x: (N, length, embed); balance: one number, to which this block's is added."""
        if not self.has_experts:
            return super().forward(x), balance
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, is_causal=True)[0]
        found, more = self.mlp(self.norm2(x))
        return x + found, balance + more


class GPT(nn.Module):
    """Predicts each next character (Radford et al., "Language Models are Unsupervised Multitask
    Learners", 2019).

    Attributes: balance (of all experts in the last forward pass).
    """

    balance: Any = 0.0

    def __init__(
        self,
        vocabulary: int,
        context: int,
        layers: int,
        heads: int,
        embed: int,
        experts: int = 0,
        ranks: dict[str, Any] | None = None,
    ) -> None:
        """experts: of each block; ranks: which have them, as MixtureOfExperts takes that."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, embed)
        self.positions = nn.Embedding(context, embed)

        def some() -> tr.MixtureOfExperts | None:
            options = {"framework": "nn", **(ranks or {})}
            return tr.MixtureOfExperts(embed, 4 * embed, experts, **options) if experts else None

        self.blocks = nn.Sequential(*(Block(embed, heads, some()) for _ in range(layers)))
        self.norm = nn.LayerNorm(embed)
        self.head = nn.Linear(embed, vocabulary, bias=False)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, characters: Any) -> Any:
        """Scores (N, length, vocabulary) of what follows each of the characters (N, length)."""
        places = nn.from_numpy(np.arange(characters.shape[-1]))
        x, self.balance = self.tokens(characters) + self.positions(places), 0.0
        for block in self.blocks:
            x, self.balance = block(x, self.balance)
        return self.head(self.norm(x))


class Entrance(nn.Module):
    """What comes before a GPT's blocks: of some of the characters, which stand in these places."""

    def __init__(self, gpt: GPT, places: np.ndarray) -> None:
        super().__init__()
        self.tokens, self.positions, self.places = gpt.tokens, gpt.positions, places

    def forward(self, characters: Any) -> Any:
        """(N, length) -> (N, length, width), and the balance of no experts."""
        x = self.tokens(characters) + self.positions(nn.from_numpy(self.places))
        return x, nn.from_numpy(np.zeros(1, np.float32))


class Exit(nn.Module):
    """What comes behind them."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.norm, self.head = gpt.norm, gpt.head

    def forward(self, x: Any, balance: Any) -> Any:
        """Scores, and the balance."""
        return self.head(self.norm(x)), balance


def layers(gpt: GPT, places: np.ndarray) -> nn.Sequential:
    """What a GPT calls, one after the other."""
    return nn.Sequential(Entrance(gpt, places), *gpt.blocks, Exit(gpt))


def cuts(blocks: int, stages: int) -> list[str]:
    """Names of the layers that stages after the first begin with: each has as many blocks."""
    return [str(1 + blocks * stage // stages) for stage in range(1, stages)]


class Text:
    """Characters as numbers, and random pieces of them, which only seed and step decide on."""

    def __init__(self, text: str, seed: int) -> None:
        self.alphabet = sorted(set(text))
        numbers = {character: number for number, character in enumerate(self.alphabet)}
        self.data = np.array([numbers[character] for character in text], np.int64)
        self.seed = seed

    def batch(
        self, step: int, size: int, context: int, share: slice = slice(None)
    ) -> tuple[Any, Any]:
        """A share of `size` pieces (…, context), and what follows each of their characters."""
        generator = np.random.default_rng((self.seed, step))
        starts = generator.integers(len(self.data) - context, size=size)[share]
        pieces = self.data[starts[:, None] + np.arange(context + 1)]
        return pieces[:, :-1], pieces[:, 1:]


def standard_library() -> str:
    """The modules of Python's standard library, one after the other."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = "".join(source.read_text("utf-8", errors="replace") for source in sources)
    return text.encode("ascii", errors="replace").decode()
