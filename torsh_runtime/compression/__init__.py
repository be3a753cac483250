"""Compresses gradients: provides hooks for data parallelism that send less than the gradients."""

from torsh_runtime.compression.base import Bucket, Compressor, FlatBucket, Hook
from torsh_runtime.compression.cast import Cast
from torsh_runtime.compression.momentum import MomentumCorrection
from torsh_runtime.compression.names import from_name
from torsh_runtime.compression.power_sgd import PowerSGD
from torsh_runtime.compression.quantised import Int8, OneBit
from torsh_runtime.compression.sparse import RandomK, Threshold, TopK
from torsh_runtime.compression.wire import Stats

__all__ = [
    "Bucket",
    "Cast",
    "Compressor",
    "FlatBucket",
    "Hook",
    "Int8",
    "MomentumCorrection",
    "OneBit",
    "PowerSGD",
    "RandomK",
    "Stats",
    "Threshold",
    "TopK",
    "from_name",
]
