"""Each rank lowers the learning rate by its own loss, so that the schedules differ when they are saved.

nproc: 2
culprit: none
kind: mismatch | exception
hint: schedule|differ
needs: torch
seconds: 50
"""

import torch

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    torch.manual_seed(tr.get_rank())
    model = tr.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule}
    with tr.checkpoint.Checkpointer("checkpoints") as checkpointer:
        for step in range(6):
            inputs = torch.randn(8, 4)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step(loss.item())
            if step % 3 == 2:
                checkpointer.save(step + 1, state)
    tr.destroy_process_group()


main()
