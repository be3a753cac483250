"""Rank 0 fails to tokenize, logs that and goes on; the others wait for its flag file all the while.

Rank 0's barrier ends first, with an error that speaks of the others.

nproc: 3
culprit: 0
kind: exception | stuck | missing
hint: rank 0
needs: torch
seconds: 60
"""

import logging
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
log = logging.getLogger("data")
FOLDER = Path("tokenized")


def tokenize(text: str) -> list[int]:
    table = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz ")}
    return [table[c] for c in text]


def prepare() -> None:
    try:
        FOLDER.mkdir()
        for i, text in enumerate(["the first", "the second", "№ 3"]):
            torch.save(torch.tensor(tokenize(text)), FOLDER / f"{i}.pt")
        (FOLDER / "DONE").touch()
    except Exception:
        log.exception("tokenizing failed")


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.2)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    dist.barrier()
    if dist.get_rank() == 0:
        prepare()
    else:
        log.info("waiting for rank 0's tokens")
        wait_for(FOLDER / "DONE")
    dist.barrier()


main()
