"""The library marks its own sections, and steps where the program marks none."""

from __future__ import annotations

import ast
import importlib.util
import re

import pytest
from support.launcher import Launcher

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

NOTES = """
from torsh_runtime.monitoring.notes import notes_of
from torsh_runtime.monitoring.recording import own_recording

before = 0

def tell(what):
    global before
    recording = own_recording()
    notes = notes_of(recording.words(), recording.words())
    now, before = notes[before:], len(notes)
    open_sections = []
    for note in now:
        if note.kind == "begin":
            open_sections.append((note.name, note.thread))
        elif note.kind == "end":
            open_sections.remove((note.name, note.thread))
    names = sorted({note.name for note in now if note.kind == "begin"})
    steps = [int(note.value) for note in now if note.kind == "step"]
    sys.stdout.write(f"TOLD {what} {(names, steps, open_sections)}\\n")
"""
OURS = (
    NOTES
    + """
import torch
import torsh_runtime as tr

tr.init_process_group()

def layers():
    return [torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)]

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

model = tr.DistributedDataParallel(torch.nn.Sequential(*layers()))
train(model)
tell("ddp")
with model.no_sync():
    model(torch.ones(4, 8)).sum().backward()
model(torch.ones(4, 8)).sum().backward()
tell("accumulated")
try:
    with model.no_sync():
        model(torch.ones(4, 8)).sum().backward()
    output = model(torch.ones(4, 8))
    output.register_hook(lambda gradient: 1 / 0)
    output.sum().backward()
except ZeroDivisionError:
    pass
model(torch.ones(4, 8)).sum().backward()
tell("broken")
del model, output

train(tr.FullyShardedDataParallel(torch.nn.Sequential(*layers())))
tell("fsdp")

loss_fn = torch.nn.functional.mse_loss
pipeline = tr.PipelineParallel(layers()[::2], loss_fn=loss_fn, num_microbatches=2)
pipeline.step(torch.ones(4, 8), torch.ones(4, 8))
tell("pipeline")

checkpointer = tr.checkpoint.Checkpointer("checkpoints")
model = torch.nn.Sequential(*layers())
checkpointer.save(1, {"model": model})
checkpointer.save(2, {"model": model}, async_op=True)
checkpointer.wait()
checkpointer.load({"model": model})
tell("checkpoint")

tr.monitoring.step(100)
train(tr.DistributedDataParallel(torch.nn.Sequential(*layers())))
tell("own")
tr.destroy_process_group()
"""
)


def told(out: str) -> dict[str, list[tuple[list[str], list[int], list[object]]]]:
    """By scene, what each rank told."""
    found: dict[str, list[tuple[list[str], list[int], list[object]]]] = {}
    for what, facts in re.findall(r"TOLD (\w+) (.*)", out):
        found.setdefault(what, []).append(ast.literal_eval(facts))
    assert all(len(each) == 2 for each in found.values())
    return found


def output(torshrun: Launcher, script: str, *options: str) -> tuple[str, str]:
    """What two ranks print to stdout and stderr."""
    torshrun.share_torch()
    process = torshrun.start("--nproc-per-node", "2", *options, torshrun.script(script))
    out, err = process.communicate(timeout=300)  # these libraries take long to load
    assert process.returncode == 0, err
    return out, err


def test_sections_and_steps_of_our_own(torshrun: Launcher) -> None:
    found = told(output(torshrun, OURS)[0])
    ddp, fsdp = ["ddp.backward", "ddp.wait"], ["backward", "reduce", "unshard", "wait"]
    kept = ["load", "save", "wait", "write"]
    for rank in range(2):
        names, steps, left = zip(*(each[rank] for each in found.values()), strict=True)
        assert names[:4] == ([*ddp, "optimizer.step"], ddp, ddp, [
            *(f"fsdp.{name}" for name in fsdp), "optimizer.step",
        ])  # fmt: skip
        assert {"pipeline.forward", "pipeline.backward", "pipeline.wait"} >= {*names[4]}
        assert {"pipeline.forward", "pipeline.backward"} <= {*names[4]}
        assert names[5] == [f"checkpoint.{name}" for name in kept]
        assert steps == ([1, 2], [3], [4], [5, 6], [7], [], [100])
        assert not any(left)


TORCHS = (
    NOTES
    + """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("torsh")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)

class Data(TensorDataset):
    def __getitem__(self, index):
        from torsh_runtime.monitoring import section, step
        with section("read"):  # in a process of the loader
            step(50)
            return super().__getitem__(index)

import torsh_runtime as tr
log = tr.monitoring.start(tr.monitoring.DebugConfig(log_communication=True))
for (batch,) in DataLoader(Data(torch.ones(16, 8)), 4, num_workers=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(2))
log.stop()
dist.barrier()
tell("torch")
dist.destroy_process_group()
"""
)


def test_an_unmodified_script_has_steps_and_its_calls_are_logged(torshrun: Launcher) -> None:
    out, err = output(torshrun, TORCHS)
    assert told(out)["torch"] == [(["optimizer.step"], [1, 2, 3, 4], [])] * 2
    calls = re.findall(r"rank (\d): all_reduce\((.*?)\) of 2 ranks at \S+:(\d+) in <module>", err)
    assert [each[1] for each in calls if each[0] == "1"] == [
        "float32[9], SUM",
        "float32[2], SUM",
    ] * 4
    assert len({line for _, _, line in calls}) == 2
    assert "barrier" not in err


ACCELERATES = (
    NOTES
    + """
import torch
from accelerate import Accelerator
from torsh_runtime.monitoring import progress as tqdm

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = torch.utils.data.DataLoader(torch.ones(32, 4), 4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
main = accelerator.is_local_main_process
bar = tqdm(range(2), disable=not main, desc="Steps", mininterval=0)
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(batch).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        bar.update(1)
        bar.set_postfix(loss=loss.detach().item(), lr=0.1)
bar.close()
tell("accelerate")
"""
)


@pytest.mark.skipif(not importlib.util.find_spec("accelerate"), reason="needs accelerate")
def test_a_script_of_accelerate_has_steps_and_one_bar(torshrun: Launcher) -> None:
    out, err = output(torshrun, ACCELERATES, "--torch-backend", "torsh")
    assert told(out)["accelerate"] == [(["optimizer.step"], [1, 2], [])] * 2
    assert len(re.findall(r"Steps: 100%\|#+\| 2/2 \[.*, loss=[\d.e-]+, lr=0.1\]", err)) == 1
