"""Maps options of other launchers to those of torshrun."""

from __future__ import annotations

from types import MappingProxyType

_GROUPS = {
    "here it is --nproc-per-node N, the workers on this node": "n np nproc nprocs num-procs "
    "num-processes num-proc-per-node num-gpus gpus ngpus gpus-per-node ntasks ntasks-per-node "
    "world-size",
    "here it is --nproc-per-node gpu": "multi-gpu",
    "here it is --nnodes N": "N nodes num-nodes num-machines",
    "here it is --node-rank N": "machine-rank",
    "here it is --master-addr HOST": "main-process-ip",
    "here it is --master-port PORT": "main-process-port",
    "here it is --hostfile FILE": "H host hosts machinefile f",
    "here it is --nnodes MIN:MAX, on each node": "min-np max-np min-num-proc max-num-proc "
    "host-discovery-script",
    "here it is --max-restarts N": "reset-limit",
    "here it is --log-dir DIRECTORY": "output-filename",
    "here it is --ssh-command COMMAND": "ssh-port ssh-identity-file",
    "here it is the variable CUDA_VISIBLE_DEVICES": "gpu-ids",
    "leave it out: workers find their places in the environment": "use-env",
}
_HINTS = MappingProxyType(
    {name: words for words, names in _GROUPS.items() for name in names.split()}
)
"""Replacements for options of mpiexec, srun, horovodrun, accelerate, deepspeed and
torch.distributed.launch, by their names without leading dashes and with - for _.
"""


def hint(typed: str) -> str:
    """Return "; " and what to write instead; "" if no such option is known."""
    words = _HINTS.get(typed.lstrip("-").replace("_", "-"))
    return f"; {words}" if words else ""
