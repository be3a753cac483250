"""The sharded checkpoint knows nothing of the layer that was added to the model since.

nproc: 2
culprit: none
kind: exception | file
hint: CheckpointException|missing key|head
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


class Model(torch.nn.Module):
    def __init__(self, reward: bool) -> None:
        super().__init__()
        self.body = torch.nn.Linear(8, 8)
        if reward:
            self.value_head = torch.nn.Linear(8, 1)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    dcp.save({"model": Model(reward=False).state_dict()}, checkpoint_id="sft/step-100")
    print(f"[{dist.get_rank()}] resuming from sft/step-100", flush=True)
    state = {"model": Model(reward=True).state_dict()}
    dcp.load(state, checkpoint_id="sft/step-100")


main()
