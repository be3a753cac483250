"""The example that trains a character GPT: it learns, and goes on where it was killed."""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[4] / "examples" / "train_gpt.py"
SMALL = ["--batch", "4", "--context", "16", "--layers", "1", "--heads", "2", "--embed", "16"]


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("train_gpt", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        spec.loader.exec_module(module)
    return module


def training(example: Any, steps: int) -> Any:
    options = argparse.Namespace(
        steps=steps, batch=4, context=16, layers=1, heads=2, embed=16, lr=1e-2, seed=3, experts=0
    )
    return example.Training(options)


def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(example: Any, tmp_path: Path) -> None:
    whole = training(example, 12)
    for _ in range(12):
        whole.step()
    killed = training(example, 12)
    for _ in range(7):
        killed.step()
        if len(killed.losses) == 5:
            killed.save(tmp_path / "gpt.npz")
    resumed = training(example, 12)
    resumed.resume(tmp_path / "gpt.npz")
    while len(resumed.losses) < 12:
        resumed.step()
    assert resumed.losses == whole.losses


def test_it_learns(example: Any) -> None:
    run = training(example, 60)
    for _ in range(60):
        run.step()
    assert sum(run.losses[-5:]) / 5 < run.losses[0] - 0.5
    assert len(example.sample(run, 20)) == 20


def run(*options: object) -> str:
    """What the script prints."""
    return output([sys.executable, str(SCRIPT), *SMALL, *map(str, options)])


def output(command: list[str]) -> str:
    """What it prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_the_script_itself(tmp_path: Path) -> None:
    checkpoint = tmp_path / "deep" / "gpt.npz"
    assert "step    10  loss" in run("--steps", 10, "--checkpoint", checkpoint)
    again = run("--steps", 12, "--sample", 5, "--checkpoint", checkpoint)
    assert "resuming from" in again
    assert "after step 10" in again
    assert "step    12  loss" in again
    assert [path.name for path in checkpoint.parent.iterdir()] == ["gpt.npz"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "train_gpt.py",
        pytest.param(
            "train_torch.py",
            marks=pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
        ),
    ],
)
def test_ranks_together_have_the_losses_of_one_process(script: str, tmp_path: Path) -> None:
    """Also when they go on from a checkpoint of one."""
    path = str(SCRIPT.with_name(script))
    options = [path, *SMALL, "--steps", "20", "--checkpoint"]
    one = [sys.executable, *options, str(tmp_path / "one")]
    ahead = ["--preload", "torch._dynamo", "--standbys", "0"] if "torch" in script else []
    two = [sys.executable, "-m", "torshrun", "--nproc-per-node", "2", *ahead, *options]
    found = [
        re.findall(r"step +(\d+)  loss ([\d.]+)", output(command))
        for command in (one, [*two, str(tmp_path / "two")])
    ]
    assert [int(step) for step, _ in found[0]] == [10, 20]
    for (_, alone), (_, together) in zip(*found, strict=True):
        assert float(together) == pytest.approx(float(alone), abs=2e-3)
    longer = [word if word != "20" else "30" for word in [*two, str(tmp_path / "one")]]
    assert "after step 20" in output(longer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "meshes"),
    [
        ((), ("pp=2,tp=2", "dp=-1,cp=2")),
        (("--experts", "3"), ("pp=2,dp=2,ep=2", "cp=2,tp=2,ep=2")),
    ],
    ids=["dense", "experts"],
)
def test_on_a_mesh_are_the_losses_of_one_process(
    options: tuple[str, ...], meshes: tuple[str, str], tmp_path: Path
) -> None:
    """Also of one that goes on from another one's checkpoint."""
    script, several = [str(SCRIPT), *SMALL, *options], ["-m", "torshrun", "--nproc-per-node", "4"]

    def losses(command: list[str], saved: str, steps: int, *options: str) -> list[float]:
        end = ["--steps", str(steps), "--checkpoint", str(tmp_path / saved)]
        said = output([sys.executable, *command, *script, *end, *options])
        assert said.count("resuming from") == (steps > 10)
        return [float(loss) for loss in re.findall(r"step +\d+  loss ([\d.]+)", said)]

    (tmp_path / "mesh").mkdir()  # in which there is no checkpoint yet
    for steps, mesh in zip((10, 20), meshes, strict=True):
        alone, together = (
            losses([], "one.npz", steps),
            losses(several, "mesh", steps, "--mesh", mesh),
        )
        assert len(alone) == 1
        assert together == pytest.approx(alone, abs=2e-3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--experts", "2"), "--experts on several ranks are for --mesh"),
        (("--mesh", "dp=2,ep=2"), "ep in --mesh is for --experts"),
        (("--mesh", "dp=2,ep=3", "--experts", "2"), "3"),
        (("--mesh", "dp=2", "--experts", "2", "--batch", "5"), "has to be a multiple of 2"),
    ],
)
def test_what_does_not_go_together_is_said(options: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "torshrun", "--nproc-per-node", "2", str(SCRIPT)]
    ended = subprocess.run(
        [*command, *SMALL, *options], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_the_losses_are_drawn(tmp_path: Path) -> None:
    run("--steps", 2, "--plot", tmp_path / "losses.png")
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_so_before_it_trains() -> None:
    code = (
        f"import sys, runpy; sys.modules['matplotlib'] = None; script = sys.argv.pop(1); "
        f"sys.path.insert(0, {str(SCRIPT.parent)!r}); runpy.run_path(script, run_name='__main__')"
    )
    command = [sys.executable, "-P", "-c", code, str(SCRIPT), "--plot", "losses.png"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 2
    assert "--plot needs matplotlib: pip install" in said.stderr


def test_ranks_that_do_not_see_one_checkpoint_do_not_train(tmp_path: Path) -> None:
    own = f"{tmp_path}/$RANK.npz"  # which rank 0 alone writes
    script = f"exec {sys.executable} {SCRIPT} {' '.join(SMALL)} --steps $0 --checkpoint {own}"
    command = [sys.executable, "-m", "torshrun", "--nproc-per-node", "2", "--no-python", "bash"]
    assert "step    10" in output([*command, "-c", script, "10"])
    again = subprocess.run(
        [*command, "-c", script, "20"], capture_output=True, text=True, timeout=120
    )
    assert again.returncode == 1
    assert "the ranks would go on after steps [10, 0]" in again.stderr
