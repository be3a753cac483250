"""YAML takes 1e-4, without a point, for text, and the optimizer does not.

nproc: 2
culprit: none
kind: exception | usage
hint: all |every|each|both|ranks
needs: torch
seconds: 60
"""

import torch
import torch.distributed as dist
import yaml

CONFIG = """
model: {width: 16}
optimizer:
  lr: 1e-4
  weight_decay: 0.01
"""


def main():
    dist.init_process_group("gloo")
    config = yaml.safe_load(CONFIG)
    width = config["model"]["width"]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), **config["optimizer"])
    for _ in range(3):
        model(torch.randn(8, width)).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
