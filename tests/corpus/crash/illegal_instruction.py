"""An extension was built for a newer processor.

nproc: 3
culprit: 2
kind: crash
hint: SIGILL, instruction, built|compiled
"""

import ctypes
import mmap
import os

import numpy as np

import torsh_runtime as tr


def fused_kernel() -> None:
    """ud2, on x86 and by chance on few others: an instruction that no processor knows."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\x0f\x0b" if os.uname().machine == "x86_64" else b"\x00\x00\x00\x00")
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    ctypes.CFUNCTYPE(None)(address)()


def main() -> None:
    tr.init_process_group(timeout=30)
    for step in range(3):
        if step == 1 and os.environ["RANK"] == "2":
            fused_kernel()
        tr.all_reduce(np.ones(8, np.float32))


main()
