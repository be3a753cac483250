"""The repository was cloned without Git LFS, so the weights are a text of three lines.

nproc: 2
culprit: none
kind: file | exception
hint: all |every|each|both|ranks
needs: torch
seconds: 60
"""

import pathlib

import torch
import torch.distributed as dist
from safetensors.torch import load_file

POINTER = """version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 267832558
"""


def clone(folder):
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_text(POINTER)
    return folder


def main():
    dist.init_process_group("gloo")
    checkout = clone(pathlib.Path(f"distil-tiny-{dist.get_rank()}"))
    dist.barrier()
    model = torch.nn.Linear(4, 4)
    model.load_state_dict(load_file(checkout / "model.safetensors"))
    model = torch.nn.parallel.DistributedDataParallel(model)
    model(torch.ones(1, 4)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
