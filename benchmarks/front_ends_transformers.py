"""Trains with the Trainer of transformers: `front_ends_transformers.py SCENE FOLDER`"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from front_ends_scene import play
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self, scene: str, folder: Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.scene, self.folder, self.steps = scene, folder, 0

    def forward(self, x: Any) -> dict[str, Any]:
        self.steps += 1
        if self.steps == 2:
            play(self.scene, self.folder, int(os.environ["RANK"]))
        return {"loss": self.layer(x).square().mean()}


def main() -> None:
    scene, folder = sys.argv[1], Path(sys.argv[2])
    settings = TrainingArguments(
        output_dir=str(folder / "kept"),
        use_cpu=True,
        max_steps=3,
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    rows = [{"x": row} for row in torch.randn(16, 4)]
    Trainer(model=Model(scene, folder), args=settings, train_dataset=rows).train()


if __name__ == "__main__":
    main()
