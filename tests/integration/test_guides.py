"""The scripts in the guides to training on several ranks run as they stand."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.blocks import shown, worker_lines
from support.forked_scripts import printed
from support.launcher import Launcher

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
needs_transformers = pytest.mark.skipif(
    not importlib.util.find_spec("transformers"), reason="needs transformers"
)


Output = Callable[[str], str]


def words_of(script: str) -> list[str]:
    """The words of the command in the script's first line."""
    words = script.partition("\n")[0].split()
    assert words[:3] == ["#", f"{words[-1]}:", "torshrun"]
    return words


def output(torshrun: Launcher, script: str, within: float = 120) -> str:
    """What two ranks print, by the command in the script's first line."""
    words = words_of(script)
    (torshrun.folder / words[-1]).write_text(script)
    code, out, err = torshrun.run(*words[3:], within=within)
    assert code == 0, err
    return out


@pytest.fixture
def outputs(torshrun: Launcher, request: pytest.FixtureRequest) -> Output:
    """Runs a script for torch, and returns what its ranks print. They are forked, since loading
    torch takes most of the time; with --soak torshrun starts them.
    """
    if request.config.getoption("--soak"):
        keep_inductor_inside(torshrun)
        return lambda script: output(torshrun, script)

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
    script = shown("docs/data-parallel.md", "# train.py")
    out = output(torshrun, script)
    assert worker_lines(out) == worker_lines(shown("docs/data-parallel.md", "$ torshrun"))
    losses = re.findall(r"rank \d: loss ([\d.]+)", out)
    assert max(map(float, losses)) < 0.01


@pytest.mark.torch
@needs_torch
def test_sharded_data_parallelism(torshrun: Launcher, outputs: Output) -> None:
    script = shown("docs/sharded-data-parallel.md", "# train.py")
    in_place = shown("docs/sharded-data-parallel.md", "# in_place.py")
    mixed = shown("docs/sharded-data-parallel.md", "# mixed.py")
    meta = shown("docs/sharded-data-parallel.md", "# meta.py")
    page = shown("docs/sharded-data-parallel.md", "$ torshrun --nproc-per-node 2 in_place.py")
    assert worker_lines(outputs(in_place)) == worker_lines(page)
    if hasattr(importlib.import_module("torch").optim, "Muon"):
        muon = outputs(shown("docs/sharded-data-parallel.md", "# muon.py"))
        assert max(map(float, re.findall(r"loss ([\d.]+)", muon))) < 0.5
    out = outputs(script)
    page = shown("docs/sharded-data-parallel.md", "$ torshrun --nproc-per-node 2 train.py")
    assert worker_lines(out) == worker_lines(page)
    losses = re.findall(r"rank \d: loss ([\d.]+), 0\.[45]\d of the parameters", out)
    assert max(map(float, losses)) < 0.5
    assert (torshrun.folder / "model.pt").exists()
    losses = re.findall(r"rank \d: loss ([\d.]+), parameters are torch.float32", outputs(mixed))
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.5
    page = shown("docs/sharded-data-parallel.md", "$ torshrun --nproc-per-node 2 meta.py")
    assert sorted(outputs(meta).splitlines()) == page.splitlines()[1:]


@pytest.mark.torch
@needs_torch
def test_context_parallelism(outputs: Output) -> None:
    script = shown("docs/context-parallel.md", "# long.py")
    out = outputs(script)
    assert worker_lines(out) == worker_lines(shown("docs/context-parallel.md", "$ torshrun"))
    losses = re.findall(r"rank \d: loss ([\d.]+), 32 of 64 tokens", out)
    assert max(map(float, losses)) < 1.0


@pytest.mark.torch
@needs_torch
@needs_transformers
def test_context_parallelism_of_transformers(outputs: Output) -> None:
    script = shown("docs/context-parallel.md", "# mistral.py")
    # which transformers loads, and which may be built for another torch
    without = 'import sys\n\nsys.modules["torchvision"] = None\nimport torch\n'
    out = outputs(script.replace("import torch\n", without, 1))
    losses = re.findall(r"rank \d: loss ([\d.]+) of 32 tokens", out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 1.0


def test_experts(torshrun: Launcher) -> None:
    script, together = (
        shown("docs/experts.md", "# experts.py"),
        shown("docs/experts.md", "# blocks.py"),
    )
    out = output(torshrun, script)
    assert worker_lines(out) == worker_lines(shown("docs/experts.md", "$ torshrun"))
    losses = re.findall(r"rank \d: loss ([\d.]+), experts 2 of 4", out)
    assert max(map(float, losses)) < 0.5
    losses = re.findall(r"rank \d: loss ([\d.]+)", output(torshrun, together))
    assert len(losses) == 8
    assert len({*losses}) == 1
    assert float(losses[0]) < 2.5


@pytest.mark.torch
@needs_torch
def test_experts_with_routers(outputs: Output) -> None:
    out = outputs(shown("docs/experts.md", "# router.py"))
    assert len(re.findall(r"rank \d: \(8, 16\)", out)) == 2


@pytest.mark.torch
@needs_torch
@needs_transformers
def test_experts_of_transformers(outputs: Output) -> None:
    command, _, rest = shown("docs/experts.md", "# mixtral.py").partition("\n")
    absent = "import sys\nsys.modules.update(torchvision=None, torchao=None)"  # slow to load
    out = outputs(f"{command}\n{absent}\n{rest}")
    losses = re.findall(r"rank \d: loss ([\d.]+), 2 of 4 experts", out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 4.5


@pytest.mark.torch
@needs_torch
def test_checkpoints(torshrun: Launcher) -> None:
    torshrun.share_torch()
    script = shown("docs/checkpoints.md", "# train.py")
    first, second = output(torshrun, script), output(torshrun, script)
    page = shown("docs/checkpoints.md", "$ torshrun")
    assert worker_lines(first + second) == worker_lines(page)
    losses = re.findall(r"rank \d: loss ([\d.]+)", first)
    assert max(map(float, losses)) < 0.5
    assert len(re.findall(r"rank \d begins with step 200", second)) == 2
    kept = sorted(path.name for path in (torshrun.folder / "checkpoints").iterdir())
    assert kept == ["step-00000100", "step-00000150", "step-00000200"]
    place, *files = shown("docs/checkpoints.md", "checkpoints/step-").splitlines()
    there = sorted(path.name for path in (torshrun.folder / place).iterdir())
    assert there == [line.split()[0] for line in files]
    commands = shown("docs/checkpoints.md", "python -m torsh_runtime.checkpoint ls")
    for line in commands.splitlines():
        words = [sys.executable, *line.split()[1:]]
        subprocess.run(words, cwd=torshrun.folder, check=True, capture_output=True, timeout=60)
    assert (torshrun.folder / "imported" / "step-00000000").exists()


@pytest.mark.torch
@needs_torch
def test_whole_states(torshrun: Launcher) -> None:
    torshrun.share_torch()
    out = output(torshrun, shown("docs/checkpoints.md", "# whole.py"))
    assert sorted(re.findall(r"rank \d has \d tensors", out)) == [
        "rank 0 has 4 tensors",
        "rank 1 has 0 tensors",
    ]


@pytest.mark.torch
@needs_torch
def test_recovery_without_restarts(torshrun: Launcher) -> None:
    torshrun.share_torch()
    out = output(torshrun, shown("docs/recovery.md", "# train.py"))
    assert sorted(re.findall(r"joins at step (\d+)", out)) == ["0", "0", "0", "30"]
    assert worker_lines(out) == worker_lines(shown("docs/recovery.md", "$ torshrun"))
    losses = re.findall(r"loss ([\d.]+)", out)
    assert max(map(float, losses)) < 0.5
    output(torshrun, shown("docs/recovery.md", "# ddp.py"))


@pytest.mark.torch
@needs_torch
def test_elastic_state(torshrun: Launcher) -> None:
    torshrun.share_torch()
    script = shown("docs/elastic.md", "# train.py")
    out = output(torshrun, script)
    assert sorted(re.findall(r"begins behind step (\d+)", out)) == ["0", "0", "30", "30"]
    assert worker_lines(out) == worker_lines(shown("docs/elastic.md", "$ torshrun"))
    losses = re.findall(r"loss ([\d.]+) after 100 steps", out)
    assert max(map(float, losses)) < 1.0


@pytest.mark.torch
@needs_torch
def test_remote_calls(torshrun: Launcher) -> None:
    script = shown("docs/rpc.md", "# double.py")
    assert "[0 2 4]" in output(torshrun, script)


def test_statistics(torshrun: Launcher) -> None:
    script = shown("docs/monitoring.md", "# stats.py")
    assert "10 80000" in output(torshrun, script)


def test_steps_and_sections(torshrun: Launcher) -> None:
    steps, bar = shown("docs/monitoring.md", "# train.py"), shown("docs/monitoring.md", "# bar.py")
    assert "29 0.0333" in output(torshrun, steps)
    torshrun.script(bar, "bar.py")
    code, _, err = torshrun.run("--nproc-per-node", "2", "bar.py")
    assert code == 0
    assert re.findall(r"epoch (\d): 100%\|#+\| 100/100 .*batch/s, loss=0.01\]", err) == ["0", "1"]


def test_configurations(torshrun: Launcher) -> None:
    script = shown("docs/monitoring.md", "# configured.py")
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
    output(torshrun, shown("docs/monitoring.md", "# bottlenecks.py"))
    told = output(torshrun, shown("docs/monitoring.md", "# analysis.py"))
    assert re.search(r"without rank 1: [\d.]+ times as fast", told)


def test_an_agent_from_within_a_program(tmp_path: Path) -> None:
    script = shown("docs/elastic.md", "# agent.py")
    (tmp_path / "agent.py").write_text(script)
    argv = [sys.executable, "agent.py"]
    for _ in range(2):  # the second time it begins with the checkpoint
        done = subprocess.run(
            argv, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
        )
        _, printed = shown("docs/elastic.md", "$ python agent.py").splitlines()
        assert printed in done.stdout, done.stderr
    assert [each.name for each in (tmp_path / "kept").iterdir()] == ["step-00000050.1"]


def test_functions(tmp_path: Path) -> None:
    script = tmp_path / "functions.py"
    script.write_text(shown("docs/shim.md", "# functions.py"))
    command = [sys.executable, str(script)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (told.returncode, told.stdout) == (0, "{0: 0, 1: 10}\n"), told.stderr


def test_compression(torshrun: Launcher) -> None:
    training = shown("docs/compression.md", "# compressed.py")
    averaging = shown("docs/compression.md", "# average.py")
    momentum = shown("docs/compression.md", "compressor = ")
    out = output(torshrun, training)
    page = shown("docs/compression.md", "$ torshrun --nproc-per-node 2 compressed.py")
    assert worker_lines(out) == worker_lines(page)
    losses = re.findall(r"loss ([\d.]+) with 2.0% of the bytes", out)
    assert max(map(float, losses)) < 0.01
    out = output(torshrun, averaging)
    page = shown("docs/compression.md", "$ torshrun --nproc-per-node 2 average.py")
    assert worker_lines(out) == worker_lines(page)
    averages = re.findall(r"rank \d: (\[.*\]) from", out)
    assert averages[0] == averages[1]
    compressor = "compressor = tr.compression.TopK(0.01)\n"
    assert training.count(compressor) == 1
    losses = re.findall(r"loss ([\d.]+)", output(torshrun, training.replace(compressor, momentum)))
    assert max(map(float, losses)) < 10


@pytest.mark.torch
@needs_torch
def test_pipeline_parallelism(torshrun: Launcher, outputs: Output) -> None:
    script = shown("docs/pipeline-parallel.md", "# stages.py")
    parts = shown("docs/pipeline-parallel.md", "# parts.py")
    pure = shown("docs/pipeline-parallel.md", "from torsh_runtime")
    out = outputs(script)
    assert worker_lines(out) == worker_lines(shown("docs/pipeline-parallel.md", "$ torshrun"))
    losses = re.findall(r"rank \d: loss ([\d.]+)", out)
    assert max(map(float, losses)) < 0.1
    assert len({*re.findall(r"rank \d: (loss [\d.]+)", outputs(parts))}) == 1
    command = [sys.executable, "-c", pure]
    done = subprocess.run(command, cwd=torshrun.folder, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("17.0 0.29"), done.stderr


@pytest.mark.torch
@needs_torch
@needs_transformers
def test_pipelines_of_whole_models(outputs: Output) -> None:
    script = shown("docs/pipeline-parallel.md", "# whole.py")
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
    script = shown("docs/tensor-parallel.md", "# train.py")
    large = shown("docs/tensor-parallel.md", "# large.py")
    sequence = shown("docs/tensor-parallel.md", "plan = {")  # with the script's own names
    again = f"{sequence}tr.parallelize(GPT(), mesh, plan)(indices)\ntr.destroy_process_group()"
    out = outputs(script.replace("tr.destroy_process_group()", again))
    assert worker_lines(out) == worker_lines(shown("docs/tensor-parallel.md", "$ torshrun"))
    found = re.findall(r"rank \d: loss ([\d.]+), (\d+) of 101 rows", out)
    assert len({loss for loss, _ in found}) == 1
    assert sorted(int(rows) for _, rows in found) == [50, 51]
    assert len(re.findall(r"rank \d: 16576 parameters", outputs(large))) == 2


@pytest.mark.torch
@needs_torch
def test_tensor_parallelism_with_a_compiler(torshrun: Launcher) -> None:
    torshrun.share_torch()
    torshrun.environ["TMPDIR"] = str(torshrun.folder)  # headers that it compiles beforehand
    script = shown("docs/tensor-parallel.md", "# compiled.py")
    losses = re.findall(r"rank \d: loss ([\d.]+)", output(torshrun, script, within=180))
    assert len(losses) == 2
    assert len({*losses}) == 1


@pytest.mark.torch
@needs_torch
@needs_transformers
def test_tensor_parallelism_of_transformers(outputs: Output) -> None:
    sequence = shown("docs/tensor-parallel.md", "tr.parallelize(model, mesh, tr.plan_of")
    again = (
        "model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4))\n"
        f"{sequence}model(input_ids=tokens, labels=tokens)\ntr.destroy_process_group()\n"
    )
    for script in (
        shown("docs/tensor-parallel.md", "# llama.py"),
        shown("docs/tensor-parallel.md", "# auto.py"),
    ):
        command, _, rest = script.partition("\n")
        absent = "import sys\nsys.modules.update(torchvision=None, torchao=None)"  # slow to load
        if "LlamaConfig" in script:
            rest = rest.replace("tr.destroy_process_group()\n", again)
        said = re.findall(r"rank \d: (loss .*)", outputs(f"{command}\n{absent}\n{rest}"))
        assert len(said) == 2
        assert len({*said}) == 1


@pytest.mark.torch
@needs_torch
@needs_transformers
def test_models_to_files_and_back(outputs: Output) -> None:
    command, _, rest = shown("docs/tensor-parallel.md", "# files.py").partition("\n")
    absent = "import sys\nsys.modules.update(torchvision=None, torchao=None)"  # slow to load
    said = outputs(f"{command}\n{absent}\n{rest}")
    assert "82752 parameters" in said


@pytest.mark.torch
@needs_torch
def test_verification(outputs: Output) -> None:
    found = outputs(shown("docs/verification.md", "# verify.py"))
    assert found == shown("docs/verification.md", "[0] 17 values")
    found = outputs(shown("docs/verification.md", "# stages.py"))
    assert "values are those of one process" in found


@pytest.mark.torch
@needs_torch
def test_scaled_losses(outputs: Output) -> None:
    script = shown("docs/mesh.md", "# scaled.py")
    said = re.findall(r"rank \d: (loss [\d.]+, scale 65536)", outputs(script))
    assert len(said) == 4
    assert len({*said}) == 1


def test_a_mesh(torshrun: Launcher) -> None:
    """Norms are one process's, also where another number of ranks goes on."""
    script = shown("docs/mesh.md", "# train.py")

    def norms(directory: str, ranks: int) -> list[str]:
        (torshrun.folder / "train.py").write_text(script.replace("checkpoints", directory))
        code, out, err = torshrun.run("--nproc-per-node", str(ranks), "train.py")
        assert code == 0, err
        return re.findall(r"step \d+: norm [\d.]+", out)

    alone = norms("alone", 1)
    assert norms("several", 4) == alone
    assert norms("several", 3) == norms("alone", 1)
    page = shown("docs/mesh.md", "$ torshrun")
    assert worker_lines("".join(f"[0] {each}\n" for each in alone)) == worker_lines(page)


@pytest.mark.torch
@needs_torch
def test_programs_for_horovod(torshrun: Launcher, outputs: Output) -> None:
    torshrun.share_torch()
    train = shown("docs/horovod.md", "# train.py")
    elastic = shown("docs/horovod.md", "# elastic.py")
    settings = shown("docs/horovod.md", "# settings.py")
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
def test_programs_for_accelerate(torshrun: Launcher) -> None:
    pytest.importorskip("accelerate")
    torshrun.share_torch()
    script = shown("docs/accelerate.md", "# train.py")
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
    torshrun.share_torch()
    script = shown("docs/gpus.md", "# train.py")
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
def test_deepspeed(outputs: Output) -> None:
    engine = shown("docs/deepspeed.md", "# deepspeed_engine.py")
    config = shown("docs/deepspeed.md", "# deepspeed_config.py")
    out = outputs(engine)
    told = r"rank \d: loss ([\d.]+), {'batch': 199} from checkpoints/global_step100"
    losses = re.findall(told, out)
    assert len(losses) == 2
    assert max(map(float, losses)) < 0.5
    assert len(re.findall(r"128 samples a step, 0\.[45]\d", outputs(config))) == 2
