"""The scripts in the guides to training on several ranks run as they stand."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.forked_scripts import printed
from support.launcher import Launcher

DOCS = Path(__file__).parents[2] / "docs"
needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
needs_transformers = pytest.mark.skipif(
    not importlib.util.find_spec("transformers"), reason="needs transformers"
)


def snippets(guide: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL)


def snippet(guide: str, name: str) -> str:
    """The one that is to be saved by this name."""
    (found,) = (each for each in snippets(guide) if each.startswith(f"# {name}:"))
    return found


def words_of(script: str) -> list[str]:
    """The words of the command in the script's first line."""
    words = script.partition("\n")[0].split()
    assert words[:3] == ["#", f"{words[-1]}:", "torshrun"]
    return words


def output(torshrun: Launcher, script: str, within: float = 30) -> str:
    """What two ranks print, by the command in the script's first line."""
    words = words_of(script)
    (torshrun.folder / words[-1]).write_text(script)
    code, out, err = torshrun.run(*words[3:], within=within)
    assert code == 0, err
    return out


Output = Callable[[str], str]


@pytest.fixture
def outputs(torshrun: Launcher, request: pytest.FixtureRequest) -> Output:
    """Runs a script for torch, and returns what its ranks print. They are forked, since loading
    torch takes most of the time; with --soak torshrun starts them.
    """
    if request.config.getoption("--soak"):
        keep_inductor_inside(torshrun)
        return lambda script: output(torshrun, script, within=120)

    def by_forked_ranks(script: str) -> str:
        *_, option, ranks, name = words_of(script)
        assert option == "--nproc-per-node"
        path = torshrun.folder / name
        path.write_text(script)
        uses_transformers = re.search(r"^(import|from) transformers", script, re.MULTILINE)
        loads = ["support.lean_transformers"] if uses_transformers else []
        return printed(path, int(ranks), loads)

    return by_forked_ranks


def keep_inductor_inside(torshrun: Launcher) -> None:
    """torch makes its folder where temporary files go, and leaves it there."""
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")


@pytest.mark.torch
@needs_torch
def test_data_parallelism(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    (script,) = snippets("data-parallel.md")
    losses = re.findall(r"rank \d: loss ([\d.]+)", output(torshrun, script))
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.01


@pytest.mark.torch
@needs_torch
def test_sharded_data_parallelism(torshrun: Launcher, outputs: Output) -> None:
    script, mixed, meta = snippets("sharded-data-parallel.md")
    out = outputs(script)
    losses = re.findall(r"rank \d: loss ([\d.]+), 0.50 of the parameters", out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.5
    assert (torshrun.folder / "model.pt").exists()
    losses = re.findall(r"rank \d: loss ([\d.]+), parameters are torch.float32", outputs(mixed))
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.5
    assert outputs(meta).count("4008000 bytes of parameters here, 4008000 elsewhere") == 2


@pytest.mark.torch
@needs_torch
def test_context_parallelism(outputs: Output) -> None:
    script, _ = snippets("context-parallel.md")
    losses = re.findall(r"rank \d: loss ([\d.]+), 32 of 64 tokens", outputs(script))
    assert len(losses) == 2
    assert max(map(float, losses)) < 1.0


@pytest.mark.torch
@needs_torch
@needs_transformers
def test_context_parallelism_of_transformers(outputs: Output) -> None:
    _, script = snippets("context-parallel.md")
    # which transformers loads, and which may be built for another torch
    without = 'import sys\n\nsys.modules["torchvision"] = None\nimport torch\n'
    out = outputs(script.replace("import torch\n", without, 1))
    losses = re.findall(r"rank \d: loss ([\d.]+) of 32 tokens", out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 1.0


def test_experts(torshrun: Launcher) -> None:
    script, together = (snippet("experts.md", name) for name in ("experts.py", "blocks.py"))
    losses = re.findall(r"rank \d: loss ([\d.]+), experts 2 of 4", output(torshrun, script))
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.5
    losses = re.findall(r"rank \d: loss ([\d.]+)", output(torshrun, together, within=120))
    assert len(losses) == 8
    assert len({*losses}) == 1
    assert float(losses[0]) < 2.5


@pytest.mark.torch
@needs_torch
def test_experts_with_routers(outputs: Output) -> None:
    out = outputs(snippet("experts.md", "router.py"))
    assert len(re.findall(r"rank \d: \(8, 16\)", out)) == 2


@pytest.mark.torch
@needs_torch
@needs_transformers
def test_experts_of_transformers(outputs: Output) -> None:
    command, _, rest = snippet("experts.md", "mixtral.py").partition("\n")
    absent = "import sys\nsys.modules.update(torchvision=None, torchao=None)"  # slow to load
    out = outputs(f"{command}\n{absent}\n{rest}")
    losses = re.findall(r"rank \d: loss ([\d.]+), 2 of 4 experts", out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 4.5


@pytest.mark.torch
@needs_torch
def test_checkpoints(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    (script,) = snippets("checkpoints.md")
    first, second = output(torshrun, script), output(torshrun, script)
    losses = re.findall(r"rank \d: loss ([\d.]+)", first)
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.5
    assert len(re.findall(r"rank \d begins with step 200", second)) == 2
    kept = sorted(path.name for path in (torshrun.folder / "checkpoints").iterdir())
    assert kept == ["step-00000100", "step-00000150", "step-00000200"]


@pytest.mark.torch
@needs_torch
def test_elastic_state(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    script, _ = snippets("elastic.md")
    out = output(torshrun, script)
    assert sorted(re.findall(r"begins behind step (\d+)", out)) == ["0", "0", "30", "30"]
    losses = re.findall(r"loss ([\d.]+) after 100 steps", out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 1.0


@pytest.mark.torch
@needs_torch
def test_remote_calls(torshrun: Launcher) -> None:
    script = snippets("rpc.md")[0]
    assert "[0 2 4]" in output(torshrun, script)


def test_statistics(torshrun: Launcher) -> None:
    script = snippet("monitoring.md", "stats.py")
    assert "10 80000" in output(torshrun, script)


def test_steps_and_sections(torshrun: Launcher) -> None:
    steps, bar = (snippet("monitoring.md", name) for name in ("train.py", "bar.py"))
    assert "29 0.0333" in output(torshrun, steps)
    torshrun.script(bar, "bar.py")
    code, _, err = torshrun.run("--nproc-per-node", "2", "bar.py")
    assert code == 0
    assert re.findall(r"epoch (\d): 100%\|#+\| 100/100 .*batch/s, loss=0.01\]", err) == ["0", "1"]


def test_configurations(torshrun: Launcher) -> None:
    script = snippet("monitoring.md", "configured.py")
    torshrun.script(script, "configured.py")
    code, out, err = torshrun.run("--nproc-per-node", "2", "configured.py")
    assert code == 0, err
    assert len(re.findall(r"^(?:\[\d\] )?3$", out, re.MULTILINE)) == 2
    assert out.count("MemoryUse(rss=") == 2
    calls = r"rank (\d): all_reduce\(float64\[1000\], SUM\) of 2 ranks at \S+configured.py:\d+"
    assert sorted(re.findall(calls, err)) == ["0"] * 3 + ["1"] * 3
    assert len(re.findall(r"average +3 ", err)) == 1
    names = sorted(path.name for path in torshrun.folder.glob("torsh_timeline*"))
    assert names == ["torsh_timeline.0.json", "torsh_timeline.1.json"]


def test_bottlenecks_and_analysis(torshrun: Launcher) -> None:
    output(torshrun, snippet("monitoring.md", "bottlenecks.py"))
    told = output(torshrun, snippet("monitoring.md", "analysis.py"))
    assert re.search(r"without rank 1: [\d.]+ times as fast", told)


def test_an_agent_from_within_a_program(tmp_path: Path) -> None:
    _, script = snippets("elastic.md")
    (tmp_path / "agent.py").write_text(script)
    argv = [sys.executable, "agent.py"]
    for _ in range(2):  # the second time it begins with the checkpoint
        done = subprocess.run(
            argv, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
        )
        assert "{'steps': 50, 'workers': 2}" in done.stdout, done.stderr
    assert [each.name for each in (tmp_path / "kept").iterdir()] == ["step-00000050.1"]


def test_functions(tmp_path: Path) -> None:
    script = tmp_path / "functions.py"
    script.write_text(snippet("shim.md", "functions.py"))
    command = [sys.executable, str(script)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (told.returncode, told.stdout) == (0, "{0: 0, 1: 10}\n"), told.stderr


def test_compression(torshrun: Launcher) -> None:
    training, averaging, momentum = snippets("compression.md")
    losses = re.findall(r"loss ([\d.]+) with 2.0% of the bytes", output(torshrun, training))
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.01
    averages = re.findall(r"rank \d: (\[.*\]) from", output(torshrun, averaging))
    assert averages[0] == averages[1]
    compressor = "compressor = tr.compression.TopK(0.01)\n"
    assert training.count(compressor) == 1
    losses = re.findall(r"loss ([\d.]+)", output(torshrun, training.replace(compressor, momentum)))
    assert max(map(float, losses)) < 10


@pytest.mark.torch
@needs_torch
def test_pipeline_parallelism(torshrun: Launcher, outputs: Output) -> None:
    script, _, parts, pure = snippets("pipeline-parallel.md")
    losses = re.findall(r"rank \d: loss ([\d.]+)", outputs(script))
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.1
    assert len({*re.findall(r"rank \d: (loss [\d.]+)", outputs(parts))}) == 1
    command = [sys.executable, "-c", pure]
    done = subprocess.run(command, cwd=torshrun.folder, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("17.0 0.29"), done.stderr


@pytest.mark.torch
@needs_torch
@needs_transformers
def test_pipelines_of_whole_models(outputs: Output) -> None:
    script = snippet("pipeline-parallel.md", "whole.py")
    # which transformers loads, and which may be built for another torch
    without = 'import sys\n\nsys.modules["torchvision"] = None\nimport torch\n'
    out = outputs(script.replace("import torch\n", without, 1))
    losses = re.findall(r"rank \d: (loss [\d.]+, [\d.]+)", out)
    assert len(losses) == 2
    assert len({*losses}) == 1
    assert float(losses[0].split()[-1]) < 1.0


@pytest.mark.torch
@needs_torch
def test_tensor_parallelism(outputs: Output) -> None:
    names = ("train.py", "large.py")
    script, large = (snippet("tensor-parallel.md", name) for name in names)
    found = re.findall(r"rank \d: loss ([\d.]+), (\d+) of 101 rows", outputs(script))
    assert len(found) == 2
    assert len({loss for loss, _ in found}) == 1
    assert sorted(int(rows) for _, rows in found) == [50, 51]
    assert len(re.findall(r"rank \d: 16576 parameters", outputs(large))) == 2


@pytest.mark.torch
@needs_torch
def test_tensor_parallelism_with_a_compiler(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    torshrun.environ["TMPDIR"] = str(torshrun.folder)  # headers that it compiles beforehand
    script = snippet("tensor-parallel.md", "compiled.py")
    losses = re.findall(r"rank \d: loss ([\d.]+)", output(torshrun, script, within=180))
    assert len(losses) == 2
    assert len({*losses}) == 1


@pytest.mark.torch
@needs_torch
@needs_transformers
def test_tensor_parallelism_of_transformers(outputs: Output) -> None:
    for name in ("llama.py", "auto.py"):
        command, _, rest = snippet("tensor-parallel.md", name).partition("\n")
        absent = "import sys\nsys.modules.update(torchvision=None, torchao=None)"  # slow to load
        said = re.findall(r"rank \d: (loss .*)", outputs(f"{command}\n{absent}\n{rest}"))
        assert len(said) == 2
        assert len({*said}) == 1


@pytest.mark.torch
@needs_torch
@needs_transformers
def test_models_to_files_and_back(outputs: Output) -> None:
    command, _, rest = snippet("tensor-parallel.md", "files.py").partition("\n")
    absent = "import sys\nsys.modules.update(torchvision=None, torchao=None)"  # slow to load
    said = outputs(f"{command}\n{absent}\n{rest}")
    assert "82752 parameters" in said


@pytest.mark.torch
@needs_torch
def test_verification(outputs: Output) -> None:
    for script in snippets("verification.md"):
        assert "values are those of one process" in outputs(script)


@pytest.mark.torch
@needs_torch
def test_scaled_losses(outputs: Output) -> None:
    (script,) = (each for each in snippets("mesh.md") if each.startswith("# scaled.py"))
    said = re.findall(r"rank \d: (loss [\d.]+, scale 65536)", outputs(script))
    assert len(said) == 4
    assert len({*said}) == 1


def test_a_mesh(torshrun: Launcher) -> None:
    """Norms are one process's, also where another number of ranks goes on."""
    script = snippets("mesh.md")[0]

    def norms(directory: str, ranks: int) -> list[str]:
        (torshrun.folder / "train.py").write_text(script.replace("checkpoints", directory))
        code, out, err = torshrun.run("--nproc-per-node", str(ranks), "train.py")
        assert code == 0, err
        return re.findall(r"step \d+: norm [\d.]+", out)

    alone = norms("alone", 1)
    assert norms("several", 4) == alone
    assert norms("several", 3) == norms("alone", 1)
    assert len(alone) == 5


@pytest.mark.torch
@needs_torch
def test_programs_for_horovod(torshrun: Launcher, outputs: Output) -> None:
    keep_inductor_inside(torshrun)
    train, elastic, settings = snippets("horovod.md")
    losses = re.findall(r"rank \d of 2: loss ([\d.]+)", outputs(train))
    assert len({*losses}) == 1
    assert float(losses[0]) < 1.0
    (torshrun.folder / "elastic.py").write_text(elastic)
    process = torshrun.start("--nproc-per-node=2", "--max-restarts=1", "elastic.py")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert sorted(re.findall(r"begins behind step (\d+)", out)) == ["0", "0", "30", "30"]
    losses = re.findall(r"rank \d: loss ([\d.]+) after 60 steps", out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 1.0
    assert outputs(settings).count("of 1000 gradients came") == 2


@pytest.mark.torch
@needs_torch
def test_deepspeed(outputs: Output) -> None:
    engine, config = snippets("deepspeed.md")
    out = outputs(engine)
    told = r"rank \d: loss ([\d.]+), {'batch': 199} from checkpoints/global_step100"
    losses = re.findall(told, out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.5
    assert outputs(config).count("128 samples a step, 0.50") == 2
