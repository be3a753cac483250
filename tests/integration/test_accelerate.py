"""accelerate and transformers train on torsh as on gloo, or are refused on every rank."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support.forked_scripts import printed_by_ranks
from support.launchers import Bench
from support.torch_scripts import ONCE, SCRIPTS, alike_here, found

pytestmark = [pytest.mark.torch]
for _library in ("torch", "accelerate"):
    pytestmark += [
        pytest.mark.skipif(not importlib.util.find_spec(_library), reason=f"needs {_library}")
    ]
needs_transformers = pytest.mark.skipif(
    not importlib.util.find_spec("transformers"), reason="needs transformers"
)
OFFLINE = {"HF_HUB_OFFLINE": "1"}
TWO = ("--nproc-per-node=2", *ONCE)
APART = "each of the 2 ranks would train a model of its own. Set ACCELERATE_USE_CPU=true"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.mark.slow
def test_accelerate_trains_as_on_gloo_also_where_only_the_environment_says_cpu(
    bench: Bench,
) -> None:
    losses = alike_here(bench, 2, SCRIPTS / "accelerated.py", loads=["accelerate"], **OFFLINE)
    assert len(losses) == 4
    unsaid = (str(SCRIPTS / "accelerated.py"), "unsaid")
    environ = {**OFFLINE, "ACCELERATE_USE_CPU": "true"}
    run = bench.run("torshrun", "--torch-backend=torsh", *TWO, *unsaid, environ=environ)
    assert found(run, "loss") == losses


def test_accelerate_that_would_train_apart_is_refused_on_every_rank(bench: Bench) -> None:
    script = (str(SCRIPTS / "accelerated.py"), "unsaid")
    run = bench.run("torshrun", "--torch-backend=torsh", *TWO, *script, environ=OFFLINE)
    assert run.code != 0
    assert "loss" not in run.out
    for rank in (0, 1):
        [line] = [
            line
            for line in run.err.splitlines()
            if line.startswith(f"[{rank}] ") and "ConfigError: " in line
        ]
        assert APART in line


@pytest.mark.slow
@needs_transformers
def test_a_trainer_trains_as_on_gloo(bench: Bench) -> None:
    losses = alike_here(bench, 2, SCRIPTS / "trained.py", loads=["support.lean_trainer"], **OFFLINE)
    assert len(losses) == 16


@needs_transformers
def test_a_trainer_takes_no_ddp_backend_of_that_name(tmp_path: Path) -> None:
    loads = ("torch._dynamo", "support.lean_trainer")
    script = SCRIPTS / "refused.py"
    outputs = printed_by_ranks(script, 2, folder=tmp_path, loads=loads, environ=OFFLINE)
    lines = "".join(outputs).splitlines()
    assert len(lines) == 4
    assert sum(line.startswith("found ConfigError") and APART in line for line in lines) == 2
    assert sum("backend torsh is not available, please use gloo" in line for line in lines) == 2
