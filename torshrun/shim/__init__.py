"""torshrun in torchrun's place, wherever it is called: see docs/shim.md."""

VARIABLE = "TORSHRUN_AS_TORCHRUN"
"""1: as if the shim were installed; 0, false, no or off: as if it were not."""


def says_off(value: str) -> bool:
    """Whether this value of the variable turns the shim off."""
    return value.strip().lower() in ("0", "false", "no", "off")
