"""Rank 1 sends an object of a class that rank 0, with its older code, does not have.

culprit: 0
kind: import | version
hint: newer_model, install|version|code|path
"""

import os
import sys
import types

import torsh_runtime as tr


def newer_class() -> type:
    module = types.ModuleType("newer_model")
    sys.modules["newer_model"] = module
    exec("class Config:\n    width = 64\n", module.__dict__)
    return module.Config


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=10)
    objects = [None, None]
    tr.all_gather_object(objects, newer_class()() if rank == 1 else "old")
    tr.barrier()


main()
