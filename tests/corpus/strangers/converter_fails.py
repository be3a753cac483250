"""Rank 0 calls a converter whose complaint is captured and shown nowhere.

nproc: 2
culprit: 0
kind: exception | exit_code
hint: rank 0, exit code 1|exited with 1|status 1
needs: torch
seconds: 40
"""

import subprocess
import sys

import torch
import torch.distributed as dist

CONVERTER = "import sys; sys.stderr.write('bad magic number in weights.h5\\n'); sys.exit(4)"


def convert(path):
    command = [sys.executable, "-c", CONVERTER, path]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        convert("weights.h5")
    objects = [None]
    dist.broadcast_object_list(objects, src=0)
    print(torch.tensor(0.0), objects)
    dist.destroy_process_group()


main()
