"""python -m torshrun.functions.worker PLACE: calls the function that was left there."""

from __future__ import annotations

import sys
from pathlib import Path

from torshrun.functions.transfer import leave_result, take_function


def main() -> None:
    """What torshrun.launch() has asked for."""
    place = Path(sys.argv[1])
    function, args, by_value = take_function(place)
    sys.argv[1:] = []
    leave_result(place, function(*args), by_value=by_value)


if __name__ == "__main__":
    main()
