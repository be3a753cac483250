"""Optimizers with 8 bit moments go on exactly from checkpoints and commits, or are refused."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support import quantised_training as training  # noqa: E402
from support.torch_ranks import passed  # noqa: E402
from support.worlds import run_processes  # noqa: E402

from torshrun.workers.commit_memory import CommitMemory  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

RANKS = 2
KINDS = ["blockwise", "bitsandbytes", "torchao AdamW8bit", "torchao AdamW4bit"]


def needs(kind: str) -> None:
    """Skip where its library is missing. Imported here it is there in all ranks."""
    library = kind.split()[0]
    if library != "blockwise":
        pytest.importorskip(library + (".optim" if library == "torchao" else ""))


def assert_alike(one: list[Any], other: list[Any], rtol: float = 0.0) -> None:
    for found, expected in zip(one, other, strict=True):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol / 10)


def on_ranks(ranks: int, kind: str, way: str, directory: Path) -> list[dict[str, Any]]:
    with closing(CommitMemory(ranks)) as memory:

        def body(rank: int) -> dict[str, Any]:
            told = {"TORSH_COMMIT_MEMORY": memory.told(), "LOCAL_RANK": str(rank)}
            return training.go_on(kind, way, rank, ranks, directory, told)

        return passed(run_processes(ranks, body))


def assert_goes_on(ends: list[dict[str, Any]]) -> None:
    for own in ends:
        assert_alike(own["checkpoint"], own["undisturbed"])
        assert_alike(own["commit"], own["undisturbed"])


@pytest.mark.parametrize("way", ["ddp", "fsdp", "zero"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_goes_on_exactly_or_is_refused(kind: str, way: str, tmp_path: Path) -> None:
    needs(kind)
    ends = on_ranks(RANKS, kind, way, tmp_path)
    assert_goes_on(ends)
    for ranks in (1, 3):
        elsewhere = partial(training.load_elsewhere, kind, way, ranks=ranks, directory=tmp_path)
        for said, end in passed(run_processes(ranks, elsewhere)):
            if way != "fsdp":
                assert_alike(end, ends[0]["undisturbed"], rtol=0.2)  # sums of other parts
            else:
                assert "'optimizer' has state of '" in said
                assert "Load it with as many ranks as saved it" in said
                assert "leave 'optimizer' out of the state" in said


def test_ranks_of_which_only_some_quantise_a_parameter(tmp_path: Path) -> None:
    told = passed(run_processes(3, lambda r: training.pieces("blockwise", "fsdp", r, 3)))
    assert any(True in own and False in own for own in told), told
    assert_goes_on(on_ranks(3, "blockwise", "fsdp", tmp_path))
