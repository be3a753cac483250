"""Lets torshrun replace torchrun wherever torchrun is called: see docs/shim.md."""
