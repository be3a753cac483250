"""Decides which checkpoints of a directory remain after another save."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torsh_runtime.checkpoint.directory import places, removable, take_name
from torsh_runtime.checkpoint.reader import CheckpointReader
from torsh_runtime.errors import CheckpointError


class Retention:
    """Keeps the checkpoints of the `keep_last` steps that were saved last.

    Damaged checkpoints do not count, so that this many remain loadable.
    """

    def __init__(self, keep_last: int | None) -> None:
        """Keep `keep_last` steps; None removes only earlier checkpoints of the same step."""
        self._keep_last = keep_last
        self._whole: set[Path] = set()
        """Checkpoints that are known to be complete."""

    def retire(self, saved: Path) -> tuple[list[Path], list[OSError]]:
        """Retire all superfluous checkpoints, but never the one that was just saved.

        Returns the paths that may be removed, and the errors because of which others remain.
        """
        refused: list[OSError] = []
        self._whole.add(saved)
        for path in [*self._superfluous(saved)]:
            try:
                take_name(path)
            except (
                OSError
            ) as error:  # such as another user's checkpoint in a directory with a sticky bit
                refused.append(error)
        return removable(saved.parent), refused

    def _superfluous(self, saved: Path) -> Iterator[Path]:
        newer: dict[int, list[Path]] = {}
        num_kept = 0
        for place, path in places(saved.parent).items():
            own = newer.setdefault(place.step, [])
            is_replaced = any(map(self._is_whole, own))
            is_beyond = self._keep_last is not None and num_kept >= self._keep_last
            if path != saved and (is_replaced or is_beyond):
                yield path
                continue
            own.append(path)
            if self._keep_last is not None and not is_replaced:
                num_kept += self._is_whole(path)

    def _is_whole(self, path: Path) -> bool:
        """Return whether the manifest and the sizes of the files are correct."""
        if path not in self._whole:
            try:
                with CheckpointReader(path):
                    self._whole.add(path)
            except CheckpointError:
                return False
        return True
