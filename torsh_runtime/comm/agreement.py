"""What ranks tell each other, over any backend, to see whether they mean the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import disagreement


def texts_of_all(group: ProcessGroup, text: str) -> list[str]:
    """Everyone's text, by rank. It blocks."""
    own = np.frombuffer(text.encode(), np.uint8)
    sizes = group.all_gather_numbers(np.array([own.size], np.int64))[:, 0]
    padded = np.zeros((int(sizes.max()) // 8 + 1) * 8, np.uint8)
    padded[: own.size] = own
    rows = group.all_gather_numbers(padded.view(np.int64))
    return [
        rows[rank].tobytes()[:size].decode(errors="replace")
        for rank, size in enumerate(sizes.tolist())
    ]


def check_same(group: ProcessGroup, what: str, own: str) -> None:
    """ConfigError on all ranks if they do not all say the same of what they call this. One
    all_gather of 8 bytes where they do. It blocks."""
    digest = hashlib.blake2b(own.encode(), digest_size=8).digest()
    told = group.all_gather_numbers(np.frombuffer(digest, np.int64))
    if (told == told[0]).all():
        return
    texts = texts_of_all(group, own)
    raise disagreement(
        f"ranks mean different {what}: {by_rank(texts, group)}. Call it alike on all ranks",
        dict(enumerate(texts)),
        group.job_ranks,
    )


def by_rank(lines: Sequence[str], group: ProcessGroup) -> str:
    """Who of a group says what, as "a on rank(s) 0, 2, b on rank(s) 1": of the default group."""
    ranks: dict[str, list[str]] = {}
    for rank, line in zip(group.ranks, lines, strict=True):
        ranks.setdefault(line, []).append(str(rank))
    return ", ".join(f"{line} on rank(s) {', '.join(who)}" for line, who in ranks.items())
