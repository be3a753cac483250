"""Trains with Lightning, which starts several ranks by itself.

`front_ends_lightning.py SCENE FOLDER`
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from front_ends_scene import play, ready
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self, scene: str, folder: Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.scene, self.folder = scene, folder

    def training_step(self, batch: Any, index: int) -> Any:
        if self.scene == "preempted":  # Lightning handles SIGTERM itself
            ready(self.folder, self.global_rank)
            time.sleep(0.05)
        elif index == 1:
            play(self.scene, self.folder, self.global_rank)
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    scene, folder = sys.argv[1], Path(sys.argv[2])
    rows = 8 if scene != "preempted" else 20_000
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(scene, folder), DataLoader(TensorDataset(torch.randn(rows, 4)), batch_size=2))


if __name__ == "__main__":
    main()
