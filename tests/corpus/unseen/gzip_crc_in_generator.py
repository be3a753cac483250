"""A gzip file of rank 0's is damaged in the middle, seen deep in a chain of generators.

The other ranks' errors come before its own: it closes the group before it says what happened.

nproc: 3
culprit: 0
kind: file | exception
hint: CorpusError|BadGzipFile|zlib|gzip|crc
needs: torch
seconds: 40
"""

import gzip
import json
import time
import zlib
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist


class CorpusError(RuntimeError):
    pass


def lines(path: str) -> Iterator[bytes]:
    with gzip.open(path) as file:
        yield from file


def records(path: str) -> Iterator[dict]:
    number = 0
    try:
        for line in lines(path):
            number += 1
            yield json.loads(line)
    except (OSError, zlib.error) as error:
        raise CorpusError(f"{path}: cannot go on after record {number}") from error


def batches(path: str, size: int) -> Iterator[torch.Tensor]:
    batch = []
    for record in records(path):
        batch.append(record["value"])
        if len(batch) == size:
            yield torch.tensor(batch)
            batch = []


def write(path: str, damaged: bool) -> None:
    text = b"".join(
        b'{"id": %d, "value": %d, "text": "%x"}\n' % (i, i % 7, i * 2654435761 % 2**64)
        for i in range(4000)
    )
    packed = bytearray(gzip.compress(text))
    if damaged:
        packed[-8] ^= 0xFF  # of the checksum
    with open(path, "wb") as file:
        file.write(packed)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    write(f"part-{rank}.jsonl.gz", damaged=rank == 0)
    try:
        for batch in batches(f"part-{rank}.jsonl.gz", 100):
            total = batch.double().sum()
            dist.all_reduce(total)
        dist.barrier()
    finally:
        dist.destroy_process_group()
        time.sleep(1 if rank == 0 else 0)  # flushes what the tracker has


main()
