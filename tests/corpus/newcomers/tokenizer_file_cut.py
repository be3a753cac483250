"""Rank 1's copy of the tokenizer's file is incomplete.

nproc: 2
culprit: 1
kind: file | exception
hint: rank 1
needs: torch
seconds: 60
"""

import pathlib
from datetime import timedelta

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace


def cached_copy(rank):
    words = "[UNK] the quick brown fox jumps over a lazy dog".split()
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    text = tokenizer.to_str()
    path = pathlib.Path(f"cache-{rank}") / "tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text[:-70] if rank == 1 else text)
    return path


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    tokenizer = Tokenizer.from_file(str(cached_copy(dist.get_rank())))
    ids = torch.tensor(tokenizer.encode("the lazy fox").ids, dtype=torch.float32)
    embedding = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    embedding(ids).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
