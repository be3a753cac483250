"""torshrun in torchrun's place, wherever it is called: see docs/shim.md."""
