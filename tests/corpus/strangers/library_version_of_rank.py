"""Rank 1 has another version of the tokenizer than the others, and each refuses to go on.

nproc: 3
culprit: 1
kind: version
hint: version|0.19
needs: torch
seconds: 40
"""

import os
import pathlib
import sys

import torch.distributed as dist


def install(version):
    """As pip --target does."""
    rank = os.environ["RANK"]
    folder = pathlib.Path(f"site-{rank}", "fast_tokenizer")
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(f"__version__ = '{version}'\n")
    sys.path.insert(0, str(folder.parent))


def check_versions(module):
    versions = [None] * dist.get_world_size()
    dist.all_gather_object(versions, module.__version__)
    if len(set(versions)) > 1:
        table = ", ".join(f"rank {rank}: {version}" for rank, version in enumerate(versions))
        raise RuntimeError(f"ranks have different versions of {module.__name__}: {table}")


install("0.19.1" if os.environ["RANK"] == "1" else "0.21.0")
import fast_tokenizer  # noqa: E402

dist.init_process_group("gloo")
check_versions(fast_tokenizer)
dist.destroy_process_group()
