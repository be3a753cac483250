"""What this node is made of: processors, NUMA nodes, GPUs."""

import os


def allowed_cpus() -> frozenset[int]:
    """The processors that this process may run on."""
    return frozenset(os.sched_getaffinity(0))
