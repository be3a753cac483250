"""The examples in docs/nn.md run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.blocks import shown

GUIDE = Path(__file__).parents[4] / "docs" / "nn.md"


@pytest.mark.torch
def test_its_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    blocks = (
        shown("docs/nn.md", "import numpy"),
        shown("docs/nn.md", "import torch"),
        shown("docs/nn.md", "class Scaled"),
    )
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    written = capsys.readouterr().out
    assert float(written.split()[2].rstrip("%")) > 95
    assert "complete: tensor([1., 1.])" in written


def test_it_names_what_is_exported() -> None:
    from torsh_runtime import nn, optim

    text = GUIDE.read_text()
    left_out = {"LRScheduler", "Optimizer", "RemovableHandle", "maximum", "minimum", "matmul"}
    wanted = {*nn.__all__, *optim.__all__} - left_out - {"functional", "init", "is_grad_enabled"}
    assert not [name for name in sorted(wanted) if f"`{name}`" not in text]
