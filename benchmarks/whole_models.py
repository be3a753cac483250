"""Measures loading models from files into parts of ranks, and saving them.

    python benchmarks/whole_models.py --bars

The model is a Llama of some hundred megabytes on 2 ranks. tr.from_pretrained() reads it, and
save_pretrained() and state_dict() return it whole. Each rank's peak PSS in each of them, less its
value before there was a model, is compared with the rank's part and the largest tensor. A rank's
buffers for communication take some MiB more.

Then the model is in FullyShardedDataParallel, with AdamW: by how much PSS grows while whole states
are collected on rank 0, by tr.get_model_state_dict() and tr.get_optimizer_state_dict(), and given
back from there, by tr.set_model_state_dict() and tr.set_optimizer_state_dict().
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if not __package__:
    sys.path[:] = [*sys.path[1:], str(HERE.parent)]

from benchmarks.bars import Check, all_pass, summary  # noqa: E402

RANKS = 2
MIB = 1 << 20
ALLOWANCE = 16 * MIB
"""Bytes allowed for buffers of libraries."""
GET = ("get_model_state_dict", "get_optimizer_state_dict")
SET = ("set_model_state_dict", "set_optimizer_state_dict")
WORKER = "TORSH_WHOLE_MODELS"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--width", type=int, default=1024, help="of the model; default: 1024")
    parser.add_argument("--layers", type=int, default=6, help="default: 6")
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is missed")
    parser.add_argument("--json", type=Path, help="write what was measured there")
    parser.add_argument("--quick", action="store_true", help="a small model")
    return parser.parse_args()


def configuration(options: argparse.Namespace) -> Any:
    from benchmarks.family_models import hf

    width = 256 if options.quick else options.width
    return hf.LlamaConfig(
        vocab_size=8 * width,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2 if options.quick else options.layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    )


def work(options: argparse.Namespace, folder: Path) -> None:
    """Run one rank."""
    import torch

    import torsh_runtime as tr
    from benchmarks.family_models import hf
    from benchmarks.fsdp_memory import Samples, pss

    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    torch.set_num_threads(1)
    tr.init_process_group()
    mesh = tr.init_device_mesh({"tp": RANKS})
    kind = hf.LlamaForCausalLM
    small = hf.LlamaConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, vocab_size=64)
    if tr.get_rank() == 0:
        kind(small).save_pretrained(folder / "small")
    tr.barrier()
    first = tr.from_pretrained(kind, folder / "small", mesh)  # warms libraries up
    first.save_pretrained(folder / "small again")
    del first
    tr.barrier()
    before, found = pss(), {}
    with Samples() as samples:
        model = tr.from_pretrained(kind, folder / "model", mesh)
        tr.barrier()
    found["from_pretrained"] = samples.peak - before
    with Samples() as samples:
        model.save_pretrained(folder / "again", max_shard_size="100MB")
        tr.barrier()
    found["save_pretrained"] = samples.peak - before
    with Samples() as samples:
        state = model.state_dict()
        tr.barrier()
    found["state_dict"] = samples.peak - before
    del state
    found["part"] = sum(each.nbytes for each in model.parameters())
    del model
    found |= _sharded(kind, folder)
    (folder / f"rank-{tr.get_rank()}").write_text(json.dumps(found))
    tr.destroy_process_group()


def _sharded(kind: Any, folder: Path) -> dict[str, int]:
    """Return the growth while whole states are collected and given back, by call."""
    import torch

    import torsh_runtime as tr

    model = tr.FullyShardedDataParallel(kind.from_pretrained(folder / "model"))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    optimizer.zero_grad()
    out = tr.StateDictOptions(full_state_dict=True, cpu_offload=True)
    back = tr.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    found = {"shard": sum(each.nbytes for each in model.parameters())}
    state = _growth(found, GET[0], lambda: tr.get_model_state_dict(model, options=out))
    _growth(found, SET[0], lambda: tr.set_model_state_dict(model, state, options=back))
    del state
    both = model, optimizer
    state = _growth(found, GET[1], lambda: tr.get_optimizer_state_dict(*both, options=out))
    _growth(found, SET[1], lambda: tr.set_optimizer_state_dict(*both, state, options=back))
    return found


def _growth(found: dict[str, int], what: str, call: Any) -> Any:
    """Call it, and note by how much PSS grew meanwhile."""
    import torsh_runtime as tr
    from benchmarks.fsdp_memory import Samples, pss

    tr.barrier()
    before = pss()
    with Samples() as samples:
        result = call()
        tr.barrier()
    found[what] = samples.peak - before
    return result


def same(one: Path, other: Path) -> bool:
    """Return whether two folders have the same tensors, bit for bit."""
    import torch
    from safetensors.torch import load_file

    states: list[dict[str, Any]] = [{}, {}]
    for state, folder in zip(states, (one, other), strict=True):
        for file in folder.glob("*.safetensors"):
            state |= load_file(file)
    mine, theirs = states
    return mine.keys() == theirs.keys() and all(
        map(torch.equal, mine.values(), map(theirs.get, mine))
    )


def checks(found: list[dict[str, int]], whole: int, largest: int, is_same: bool) -> list[Check]:
    told = [Check("tensors that are not what they were", float(not is_same), 0, True, "bits")]
    for rank, each in enumerate(found):
        for what in ("from_pretrained", "save_pretrained", "state_dict"):
            most = each["part"] + largest
            if rank == 0 and what != "from_pretrained":
                most = whole + largest + (each["part"] if what == "state_dict" else 0)
            text = f"{what} on rank {rank}: PSS, MiB"
            limit = round((most + ALLOWANCE) / MIB)
            told.append(Check(text, each[what] / MIB, limit, True, f"memory of {what}"))
        for number, what in enumerate((*GET, *SET)):
            most = largest + (whole * (1, 2)[number % 2] if what in GET and rank == 0 else 0)
            if what == SET[1]:
                most += 2 * each["shard"]  # the state that is loaded, beside the one before
            text = f"{what} on rank {rank}: growth, MiB"
            limit = round((most + ALLOWANCE) / MIB)
            told.append(Check(text, each[what] / MIB, limit, True, f"memory of {what}"))
    return told


def main() -> int:
    options = parse()
    if WORKER in os.environ:
        work(options, Path(os.environ[WORKER]))
        return 0
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        from benchmarks.family_models import hf

        model = hf.LlamaForCausalLM(configuration(options))
        model.save_pretrained(folder / "model")
        whole = sum(each.nbytes for each in model.parameters())
        largest = max(each.nbytes for each in model.parameters())
        del model
        command = [sys.executable, "-m", "torshrun", "--nproc-per-node", str(RANKS)]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", WORKER: text}
        variables["MALLOC_MMAP_THRESHOLD_"] = "65536"  # so that what is freed does not count
        subprocess.run([*command, *sys.argv], check=True, env=variables, timeout=600)
        found = [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(RANKS)]
        told = checks(found, whole, largest, same(folder / "model", folder / "again"))
    print(f"whole {whole / MIB:.0f} MiB, largest tensor {largest / MIB:.0f} MiB")
    for rank, each in enumerate(found):
        print(f"rank {rank}: " + ", ".join(f"{n} {size / MIB:.0f} MiB" for n, size in each.items()))
    if options.json:
        options.json.write_text(json.dumps({"whole": whole, "largest": largest, "ranks": found}))
    print(summary(told))
    return int(options.bars and not all_pass(told))


if __name__ == "__main__":
    raise SystemExit(main())
