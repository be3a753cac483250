"""Experts, of which each rank has some: layers is what users make, of which torch.py and nn.py make
modules.
"""

from torsh_runtime.parallel.experts.layers import MixtureOfExperts

__all__ = ["MixtureOfExperts"]
