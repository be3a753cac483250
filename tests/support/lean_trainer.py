"""Loads transformers' Trainer and a model, without what lean_transformers leaves out, too."""

from __future__ import annotations

import sys

from support.lean_transformers import absent, hf

sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
hf.Trainer, hf.GPT2LMHeadModel  # noqa: B018
for name in absent:
    del sys.modules[name]
