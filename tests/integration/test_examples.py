"""The examples for torch do what examples/README.md says, and it lists all examples."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from support.launcher import Launcher

EXAMPLES = Path(__file__).parents[2] / "examples"
HELPERS = {"gpt.py"}
WITHOUT = 'import sys\n\nsys.modules["torchvision"] = None\nimport torch\n'
"""What transformers loads, and what may be built for another torch."""


def command_of(name: str) -> str:
    """The first one in its docstring."""
    (command,) = re.findall(r"^    (torshrun .*)$", (EXAMPLES / name).read_text(), re.MULTILINE)[:1]
    return command


def test_the_readme_lists_each_example_with_its_command() -> None:
    rows = re.findall(r"^\| \[(\w+\.py)\]\(\1\) .* \| `(.*)` \|$", text_of_readme(), re.MULTILINE)
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - HELPERS
    assert dict(rows) == {name: command_of(name) for name in scripts}


def text_of_readme() -> str:
    return (EXAMPLES / "README.md").read_text()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "needs", "said"),
    [
        ("torch_fsdp.py", "torch", [r"rank 1 holds 8,737 of 17,793", r"epoch 10  loss 0\.[01]"]),
        ("pipeline.py", "torch", [r"rank 0 has the layers 0, 1, 2, 3\n", r"step 20  loss 0\.0"]),
        (
            "hugging_face.py",
            "transformers",
            [r"rank 0 holds 37,440 of 74,560", r"with \[44, 45, 46, 47, 48, 49\]"],
        ),
        ("lightning_ddp.py", "lightning", [r"epoch 1  loss [123]\.", r"epoch 5  loss 0\.[01]"]),
        ("checkpoints.py", "torch", ["epoch 3 .*\n", "resuming after epoch 3\n", "epoch 4 .*"]),
        ("elastic.py", "torch", ["begins after step 0\n", "begins after step 30\n", "100 steps"]),
    ],
)
def test_it_does_what_it_shows(torshrun: Launcher, name: str, needs: str, said: list[str]) -> None:
    if not importlib.util.find_spec(needs):
        pytest.skip(f"needs {needs}")
    torshrun.share_torch()
    text = (EXAMPLES / name).read_text()
    if needs == "transformers":
        text = text.replace("import torch\n", WITHOUT, 1)
    (torshrun.folder / name).write_text(text)
    words = command_of(name).replace("examples/", "").split()
    code, out, err = torshrun.run(*words[1:], within=120)
    assert code == 0, err
    assert re.search(".*".join(said), out, re.DOTALL), out
    assert not (torshrun.folder / "checkpoints/example").exists()
