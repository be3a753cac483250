"""Experts, of which each rank has some.

layers is what users make, of which torch.py and nn.py make modules; routing (pure: which token goes
to which expert, and where that is), rows (operations on tokens that lie by expert).
"""

from torsh_runtime.parallel.experts.layers import MixtureOfExperts

__all__ = ["MixtureOfExperts"]
