"""The scripts in the guides to training on several ranks run as they stand."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.launcher import Launcher

DOCS = Path(__file__).parents[2] / "docs"
needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")


def snippets(guide: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL)


def snippet(guide: str, name: str) -> str:
    """The one that is to be saved by this name."""
    (found,) = (each for each in snippets(guide) if each.startswith(f"# {name}:"))
    return found


def output(torshrun: Launcher, script: str, within: float = 30) -> str:
    """What two ranks print, by the command in the script's first line."""
    words = script.partition("\n")[0].split()
    assert words[:3] == ["#", f"{words[-1]}:", "torshrun"]
    (torshrun.folder / words[-1]).write_text(script)
    code, out, err = torshrun.run(*words[3:], within=within)
    assert code == 0, err
    return out


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
def test_sharded_data_parallelism(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    script, mixed, meta = snippets("sharded-data-parallel.md")
    out = output(torshrun, script)
    losses = re.findall(r"rank \d: loss ([\d.]+), 0.50 of the parameters", out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.5
    assert (torshrun.folder / "model.pt").exists()
    losses = re.findall(
        r"rank \d: loss ([\d.]+), parameters are torch.float32", output(torshrun, mixed)
    )
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.5
    assert output(torshrun, meta).count("4008000 bytes of parameters here, 4008000 elsewhere") == 2


@pytest.mark.torch
@needs_torch
def test_context_parallelism(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    script, _ = snippets("context-parallel.md")
    losses = re.findall(r"rank \d: loss ([\d.]+), 32 of 64 tokens", output(torshrun, script))
    assert len(losses) == 2
    assert max(map(float, losses)) < 1.0


@pytest.mark.torch
@needs_torch
def test_context_parallelism_of_transformers(torshrun: Launcher) -> None:
    pytest.importorskip("transformers")
    keep_inductor_inside(torshrun)
    _, script = snippets("context-parallel.md")
    # which transformers loads, and which may be built for another torch
    without = 'import sys\n\nsys.modules["torchvision"] = None\nimport torch\n'
    out = output(torshrun, script.replace("import torch\n", without, 1))
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
def test_experts_with_routers(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    out = output(torshrun, snippet("experts.md", "router.py"))
    assert len(re.findall(r"rank \d: \(8, 16\)", out)) == 2


@pytest.mark.torch
@needs_torch
@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
def test_experts_of_transformers(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    command, _, rest = snippet("experts.md", "mixtral.py").partition("\n")
    absent = "import sys\nsys.modules.update(torchvision=None, torchao=None)"  # slow to load
    out = output(torshrun, f"{command}\n{absent}\n{rest}", within=120)
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
def test_pipeline_parallelism(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    script, _, parts, pure = snippets("pipeline-parallel.md")
    losses = re.findall(r"rank \d: loss ([\d.]+)", output(torshrun, script))
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.1
    assert len({*re.findall(r"rank \d: (loss [\d.]+)", output(torshrun, parts))}) == 1
    command = [sys.executable, "-c", pure]
    done = subprocess.run(command, cwd=torshrun.folder, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("17.0 0.29"), done.stderr


@pytest.mark.torch
@needs_torch
def test_pipelines_of_whole_models(torshrun: Launcher) -> None:
    pytest.importorskip("transformers")
    keep_inductor_inside(torshrun)
    script = snippet("pipeline-parallel.md", "whole.py")
    # which transformers loads, and which may be built for another torch
    without = 'import sys\n\nsys.modules["torchvision"] = None\nimport torch\n'
    out = output(torshrun, script.replace("import torch\n", without, 1), within=120)
    losses = re.findall(r"rank \d: (loss [\d.]+, [\d.]+)", out)
    assert len(losses) == 2
    assert len({*losses}) == 1
    assert float(losses[0].split()[-1]) < 1.0


@pytest.mark.torch
@needs_torch
def test_tensor_parallelism(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    names = ("train.py", "large.py")
    script, large = (snippet("tensor-parallel.md", name) for name in names)
    found = re.findall(r"rank \d: loss ([\d.]+), (\d+) of 101 rows", output(torshrun, script))
    assert len(found) == 2
    assert len({loss for loss, _ in found}) == 1
    assert sorted(int(rows) for _, rows in found) == [50, 51]
    assert len(re.findall(r"rank \d: 16576 parameters", output(torshrun, large))) == 2


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
@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
def test_tensor_parallelism_of_transformers(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    for name in ("llama.py", "auto.py"):
        command, _, rest = snippet("tensor-parallel.md", name).partition("\n")
        absent = "import sys\nsys.modules.update(torchvision=None, torchao=None)"  # slow to load
        said = re.findall(r"rank \d: (loss .*)", output(torshrun, f"{command}\n{absent}\n{rest}"))
        assert len(said) == 2
        assert len({*said}) == 1


@pytest.mark.torch
@needs_torch
@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
def test_models_to_files_and_back(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    command, _, rest = snippet("tensor-parallel.md", "files.py").partition("\n")
    absent = "import sys\nsys.modules.update(torchvision=None, torchao=None)"  # slow to load
    said = output(torshrun, f"{command}\n{absent}\n{rest}", within=90)
    assert "82752 parameters" in said


@pytest.mark.torch
@needs_torch
def test_verification(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    for script in snippets("verification.md"):
        assert "values are those of one process" in output(torshrun, script)


@pytest.mark.torch
@needs_torch
def test_scaled_losses(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    (script,) = (each for each in snippets("mesh.md") if each.startswith("# scaled.py"))
    said = re.findall(r"rank \d: (loss [\d.]+, scale 65536)", output(torshrun, script))
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
def test_programs_for_horovod(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    train, elastic, settings = snippets("horovod.md")
    losses = re.findall(r"rank \d of 2: loss ([\d.]+)", output(torshrun, train))
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
    assert output(torshrun, settings).count("of 1000 gradients came") == 2


@pytest.mark.torch
@needs_torch
def test_programs_for_accelerate(torshrun: Launcher) -> None:
    pytest.importorskip("accelerate")
    keep_inductor_inside(torshrun)
    (script,) = snippets("accelerate.md")
    variable, _, command = script.removeprefix("# train.py: ").partition(" ")
    torshrun.environ.update((variable.split("="),), HF_HUB_OFFLINE="1")
    out = output(torshrun, f"# train.py: {command}", within=60)
    losses = re.findall(r"\[0\] epoch \d: loss ([\d.]+)", out)
    assert len(losses) == 5
    assert float(losses[-1]) < float(losses[0]) / 2


@pytest.mark.torch
@needs_torch
def test_programs_for_gpus_without_them(torshrun: Launcher) -> None:
    """The script with the processors in the place of GPUs."""
    keep_inductor_inside(torshrun)
    (script,) = snippets("gpus.md")
    for there, here in (
        ("--nproc-per-node gpu", "--nproc-per-node 2"),
        ("torch.cuda.set_device(local_rank)\n", ""),
        ('"cpu:native,cuda:nccl", device_id=local_rank', '"cpu:native"'),
        (".cuda()", ""),
        ('device="cuda"', 'device="cpu"'),
    ):
        assert script.count(there) == 1
        script = script.replace(there, here)
    assert output(torshrun, script + "print(loss.item() < 4)").count("True") == 2


@pytest.mark.torch
@needs_torch
def test_deepspeed(torshrun: Launcher) -> None:
    keep_inductor_inside(torshrun)
    engine, config = snippets("deepspeed.md")
    out = output(torshrun, engine)
    told = r"rank \d: loss ([\d.]+), {'batch': 199} from checkpoints/global_step100"
    losses = re.findall(told, out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.5
    assert output(torshrun, config).count("128 samples a step, 0.50") == 2
