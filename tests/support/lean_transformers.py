"""Loads transformers without what it would take seconds to load, and tests do not need."""

from __future__ import annotations

import sys

UNNEEDED = ("torchvision", "torchao")
# What it has found when it was loaded, it would miss afterwards.
absent = [name for name in UNNEEDED if not {name, "transformers"} & {*sys.modules}]
sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
import transformers as hf  # noqa: E402

hf.PreTrainedModel  # noqa: B018  # which loads what all models need
for name in absent:
    del sys.modules[name]

__all__ = ["hf"]
