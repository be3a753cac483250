"""Trains with Lightning's Trainer on workers that torshrun starts and watches.

    torshrun --nproc-per-node 2 examples/lightning_ddp.py
    torshrun --nproc-per-node 2 --torch-backend torsh examples/lightning_ddp.py

The script does not mention torshrun: Lightning finds its place as under torchrun, and adds
torshrun's callback. With the second command torsh_runtime averages the gradients instead of Gloo.
Needs lightning.
"""

from __future__ import annotations

import torch
from lightning import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        if self.global_rank == 0:
            loss = self.trainer.callback_metrics["loss"].item()
            print(f"epoch {self.current_epoch + 1}  loss {loss:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    seed_everything(0, verbose=False)
    inputs = torch.randn(4096, 16)
    data = TensorDataset(inputs, inputs @ torch.randn(16, 1))
    trainer = Trainer(
        accelerator="cpu",
        devices=2,  # as many as --nproc-per-node
        strategy="ddp",
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), DataLoader(data, batch_size=128, shuffle=True))


if __name__ == "__main__":
    main()
