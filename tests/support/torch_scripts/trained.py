"""Training by transformers.Trainer, on CPUs."""

import os
import sys
import tempfile

sys.modules.update(torchvision=None, torchao=None)  # slow to load
import torch  # noqa: E402
from transformers import (  # noqa: E402
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_) -> None:
        if "loss" in logs:
            print("loss", state.global_step, os.environ["RANK"], logs["loss"])


texts = torch.randint(60, (32, 12), generator=torch.Generator().manual_seed(5))
rows = [{"input_ids": text, "labels": text} for text in texts]
torch.manual_seed(0)
config = GPT2Config(vocab_size=60, n_positions=12, n_embd=16, n_layer=2, n_head=2)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=4,
        num_train_epochs=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    assert arguments.world_size == 2
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows, callbacks=[Say()]).train()
torch.distributed.destroy_process_group()
