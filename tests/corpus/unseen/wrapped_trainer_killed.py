"""Each rank is a wrapper around the real trainer; rank 1's is killed, and the wrapper passes on its -9.

Which leaves the wrapper with exit code 247.

nproc: 2
culprit: 1
kind: exit_code | signal
hint: rank 1, 247|-9|SIGKILL|kill
needs: torch
seconds: 50
"""

import os
import subprocess
import sys

TRAINER = r"""
import os, time
from datetime import timedelta
import torch, torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=30))
loss = torch.ones(8)
for step in range(200):
    if step == 20 and dist.get_rank() == 1:
        os.kill(os.getpid(), 9)  # an impatient administrator
    dist.all_reduce(loss)
    loss /= dist.get_world_size()
    time.sleep(0.01)
"""


def main() -> int:
    rank = os.environ["RANK"]
    with open(f"trainer_{rank}.py", "w") as file:
        file.write(TRAINER)
    print(f"[wrapper {rank}] numactl and friends are set up, starting the trainer", flush=True)
    return subprocess.call([sys.executable, f"trainer_{rank}.py"])


sys.exit(main())
