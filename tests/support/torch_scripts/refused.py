"""What accelerate and transformers say where a training would not be of all ranks together."""

import sys

sys.modules.update(torchvision=None, torchao=None)  # slow to load
import torch  # noqa: E402
from transformers import TrainingArguments  # noqa: E402

for given in ({"ddp_backend": "torsh"}, {"use_cpu": True, "ddp_backend": "torsh"}):
    try:
        print("found", TrainingArguments(report_to=[], **given).world_size)
    except ValueError as error:
        print("found", type(error).__name__, error)
    assert not torch.distributed.is_initialized()
