"""Only rank 0 writes the metrics, among which is a number of numpy's that JSON does not know.

nproc: 3
culprit: 0
kind: exception
hint: TypeError|JSON|serializable
needs: torch
seconds: 40
"""

import json
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist


def evaluate() -> dict:
    hits = torch.tensor([3.0, 4.0])
    dist.all_reduce(hits)
    accuracy, recall = hits.numpy() / 12
    return {"accuracy": float(accuracy), "recall": recall, "step": 400, "best": bool(np.True_)}


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    metrics = evaluate()
    if dist.get_rank() == 0:
        with open("all_results.json", "w") as file:
            json.dump(metrics, file, indent=2)
    dist.barrier()
    evaluate()


main()
