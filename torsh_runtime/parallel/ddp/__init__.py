"""Data parallelism: every rank has the whole model and its own batches."""

from torsh_runtime.parallel.ddp.bucket import Bucket, Hook
from torsh_runtime.parallel.ddp.config import BucketConfig
from torsh_runtime.parallel.ddp.wrapper import DistributedDataParallel

__all__ = ["Bucket", "BucketConfig", "DistributedDataParallel", "Hook"]
