"""Training with accelerate, on CPUs, or with `unsaid` where the environment says."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=sys.argv[1:] != ["unsaid"])
set_seed(3)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.Adam(model.parameters(), lr=0.01), loader
)
for epoch in range(2):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    mean = accelerator.gather(loss.detach()).mean()
    print("loss", epoch, accelerator.process_index, mean.item())
accelerator.wait_for_everyone()
assert accelerator.num_processes == 2
accelerator.end_training()
