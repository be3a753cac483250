"""Horovod: its interface to torch, and its configurations."""
