"""Node 1's processor lacks an instruction that a kernel was compiled for.

nproc: 1
nnodes: 2
culprit: 1
kind: crash
hint: SIGILL|illegal instruction
torchrun: no
seconds: 20
"""

import ctypes
import mmap
import os
import resource

import numpy as np

import torsh_runtime as tr

UD2 = b"\x0f\x0b"  # on x86-64 what every processor refuses, as an old one does AVX-512
RETURN = b"\xc3"


def fused_kernel(code):
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.CFUNCTYPE(None)(address), memory


def main():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tr.init_process_group(timeout=15)
    kernel, _memory = fused_kernel(UD2 if os.environ["GROUP_RANK"] == "1" else RETURN)
    for step in range(20):
        tr.all_reduce(np.ones(64, np.float32))
        if step >= 10:
            kernel()
    tr.destroy_process_group()


main()
