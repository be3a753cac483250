"""Calls the function that was left in a directory: python -m torshrun.functions.worker PLACE."""

from __future__ import annotations

import sys
from pathlib import Path

from torshrun.functions.transfer import leave_result, take_function


def main() -> None:
    """Call the function of torshrun.launch() and write its result."""
    place = Path(sys.argv[1])
    function, args, by_value = take_function(place)
    sys.argv[1:] = []
    leave_result(place, function(*args), by_value=by_value)


if __name__ == "__main__":
    main()
