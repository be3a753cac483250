"""torchdata's StatefulDataLoader in checkpoints and commits, with several samplers."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchdata.stateful_dataloader")

from support import loader_training as training
from support.torch_ranks import passed
from support.worlds import run_processes

from torshrun.workers.commit_memory import CommitMemory

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

RANKS = 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["elastic", "torsh", "torch", "random"])
def test_a_loader_goes_on_exactly_or_is_refused(kind: str, workers: int, tmp_path: Path) -> None:
    with closing(CommitMemory(RANKS)) as memory:

        def body(rank: int) -> dict[str, Any]:
            told = {"TORSH_COMMIT_MEMORY": memory.told(), "LOCAL_RANK": str(rank)}
            return training.go_on(kind, workers, rank, RANKS, tmp_path, told)

        found = passed(run_processes(RANKS, body))
    for own in found:
        assert own["checkpoint"] == own["within"]
        assert own["commit"] == own["within"]
        assert own["checkpoint behind"] == own["behind"]
    if not workers:
        elsewhere = partial(training.load_elsewhere, kind, ranks=3, directory=tmp_path)
        check_elsewhere(kind, passed(run_processes(3, elsewhere)), found)


def check_elsewhere(kind: str, told: list[tuple[str, Any]], found: list[dict[str, Any]]) -> None:
    if kind == "elastic":
        assert all(said == "" for said, _ in told)
        expected = sorted(n for own in found for part in own["within"] for b in part for n in b)
        assert sorted(n for _, batches in told for batch in batches for n in batch) == expected
        return
    for said, after in told:
        assert "'loader' was kept by 2 ranks within an epoch, and there are 3" in said
        assert "ElasticSampler(...).ahead()" in said
        assert len(after) == (12 if kind == "random" else 4)  # of all samples, or of a third


def test_a_sampler_of_torchdatas_goes_on_or_is_refused(tmp_path: Path) -> None:
    def on_ranks(ranks: int, start: int) -> list[tuple[str, list[int]]]:
        alone = partial(training.sampler_alone, ranks=ranks, directory=tmp_path, start=start)
        return passed(run_processes(ranks, alone))

    left = on_ranks(2, 5)
    assert on_ranks(2, 0) == left
    for said, _ in on_ranks(3, 0):
        assert "'sampler' was kept by 2 ranks within an epoch, and there are 3" in said
