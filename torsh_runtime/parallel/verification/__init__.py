"""Checks whether a model that is spread over ranks computes the same as in one process."""

from torsh_runtime.parallel.verification.difference import Difference, Verification
from torsh_runtime.parallel.verification.verifying import verify

__all__ = ["Difference", "Verification", "verify"]
