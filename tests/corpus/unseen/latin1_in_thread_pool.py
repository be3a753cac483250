"""A file that rank 1 reads in a pool of threads is not UTF-8.

Rank 0 has failures of its own in its pool, which it logs and tries again with success.

nproc: 3
culprit: 1
kind: encoding | exception
hint: UnicodeDecodeError|encod|utf-8
needs: torch
seconds: 40
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="[%(levelname)s] %(threadName)s %(message)s")
seen: set[Path] = set()


def flaky(path: Path) -> None:
    if dist.get_rank() == 0 and path.stem.endswith("3") and path not in seen:
        seen.add(path)
        raise TimeoutError(f"{path}: no answer from the object store within 10 s")


def words(path: Path) -> int:
    for attempt in range(3):
        try:
            flaky(path)
        except TimeoutError:
            logging.exception("attempt %d of 3", attempt + 1)
        else:
            break
    return len(path.read_text(encoding="utf-8").split())


def prepare(folder: Path) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{i:02d}.txt" for i in range(8)]
    for path in paths:
        path.write_text("the quick brown fox\n", encoding="utf-8")
    if folder.name == "fr":
        paths[6].write_text("une tasse de café\n", encoding="latin-1")
    return paths


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    paths = prepare(Path(("en", "fr", "de")[dist.get_rank()]))
    dist.barrier()
    with ThreadPoolExecutor(4, "reader") as pool:
        total = torch.tensor(sum(pool.map(words, paths)))
    dist.all_reduce(total)
    logging.info("%d words", total.item())


main()
