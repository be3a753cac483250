"""An assertion of a native library fails on rank 1.

nproc: 2
culprit: 1
kind: crash | signal
hint: SIGABRT|abort|signal 6
needs: torch
seconds: 60
"""

import ctypes
from datetime import timedelta

import torch
import torch.distributed as dist


class FusedKernel:
    """The binding of a kernel that wants at least one token for each expert."""

    check = getattr(ctypes.CDLL(None), "__assert_fail")

    def launch(self, counts):
        if min(counts) < 1:
            self.check(b"n_tokens > 0", b"csrc/moe/dispatch.cpp", 214, b"launch")
        return torch.tensor(counts, dtype=torch.float32)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    kernel = FusedKernel()
    for step in range(6):
        counts = [4, 4] if dist.get_rank() == 0 else [3 + step, 5 - step - (step == 4)]
        dist.all_reduce(kernel.launch(counts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
