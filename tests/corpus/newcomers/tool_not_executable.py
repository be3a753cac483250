"""The scoring tool that rank 0 runs was unpacked without its executable bit.

nproc: 2
culprit: 0
kind: permission | file | exception
hint: executable|chmod|permission|EACCES
needs: torch
seconds: 60
"""

import pathlib
import subprocess
from datetime import timedelta

import torch
import torch.distributed as dist

TOOL = "#!/bin/sh\necho 27.4\n"


def unpack(folder):
    """zipfile does not keep the bits of permissions."""
    folder.mkdir(exist_ok=True)
    tool = folder / "bleu-score"
    tool.write_text(TOOL)
    return tool


def score(tool, hypotheses):
    path = pathlib.Path("hypotheses.txt")
    path.write_text("\n".join(hypotheses))
    return float(subprocess.check_output([tool.resolve(), path]))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    for epoch in range(2):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        bleu = torch.zeros(1)
        if dist.get_rank() == 0:
            bleu += score(unpack(pathlib.Path("tools")), ["a cat sat", "on the mat"])
        dist.broadcast(bleu, src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
