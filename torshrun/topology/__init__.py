"""Reads what this node is made of: processors, NUMA nodes, GPUs."""
