"""The flags for overflows are floats, as GradScaler has them, and are combined by a bitwise or.

nproc: 2
culprit: none
kind: exception | usage
hint: all_?reduce|all |every|each|both|ranks
needs: torch
seconds: 60
"""

import torch
import torch.distributed as dist


class Scaler:
    def __init__(self):
        self.scale = 2.0**16

    def step(self, model, optimizer):
        found_inf = torch.zeros(1)
        for parameter in model.parameters():
            found_inf += (~torch.isfinite(parameter.grad)).any()
        dist.all_reduce(found_inf, op=dist.ReduceOp.BOR)
        if found_inf.item():
            self.scale /= 2
        else:
            optimizer.step()


def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = Scaler()
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.randn(4, 8)).mean() * scaler.scale).backward()
        scaler.step(model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
