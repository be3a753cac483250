"""What users do with pipelines is what one process does, or refused by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytest.importorskip("torch")

from support import pipeline_users, whole_pipelines

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """All of it, in one world. Ranks are forked: what they import is there."""
    for family in ("llama", "qwen2", "gpt2"):
        whole_pipelines.model_of(family)
    pipeline_users.clip()
    folder: Path = tmp_path_factory.mktemp("saved")
    bodies = {
        "strangers": pipeline_users.strangers,
        "mixed": pipeline_users.mixed,
        "saved": partial(pipeline_users.saved, folder=folder),
        "refused": pipeline_users.refused,
    }
    return run_in_one_world(2, bodies, 110.0)


@pytest.mark.parametrize("what", ["strangers", "mixed", "saved"])
def test_what_comes_out_is_what_one_process_finds(found: dict[str, list[Any]], what: str) -> None:
    for pairs in found[what]:
        assert not isinstance(pairs, Raised), pairs.error.args[0]
        for name, (got, wanted) in pairs.items():
            assert got == pytest.approx(wanted, rel=1e-6, abs=1e-9), name


def test_what_would_be_wrong_is_refused_by_name(found: dict[str, list[Any]]) -> None:
    texts = (
        "has been cut into stages",
        "has been cut into stages",
        "has been cut into stages",
        "'generate': no rank has all layers",
        "'save_pretrained': no rank has all layers",
        "pipeline.module.parameters",
        "pass tokens=lambda target: (target != -100).sum()",
        "the batch has num_items_in_batch",
        "one rank share model.embed_tokens.weight",
        "loss_fn is a sum over the microbatch",
        "loss_fn is a sum over the microbatch",
        "",
    )
    for said in found["refused"]:
        assert not isinstance(said, Raised), said.error.args[0]
        for text, found_text in zip(texts, said, strict=True):
            assert text in found_text
