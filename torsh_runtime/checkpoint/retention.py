"""Which checkpoints of a directory stay when another one has been saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torsh_runtime.checkpoint.directory import places, removable, take_name
from torsh_runtime.checkpoint.reader import CheckpointReader
from torsh_runtime.errors import CheckpointError


class Retention:
    """Keeps the newest of so many steps, by the order in which they were saved. What is damaged
    does not count, so that as many stay that can be loaded."""

    def __init__(self, keep_last: int | None) -> None:
        """keep_last: None: all but earlier ones of the same step."""
        self._keep_last = keep_last
        self._whole: set[Path] = set()
        """Of which that is known."""

    def retire(self, saved: Path) -> tuple[list[Path], list[OSError]]:
        """Take the names from all but those that stay, and never from the one that was just saved.
        Returns what may be removed, and why others of them stay."""
        refused: list[OSError] = []
        self._whole.add(saved)
        for path in [*self._superfluous(saved)]:
            try:
                take_name(path)
            except OSError as error:  # another user's, for one, in a directory with a sticky bit
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
        """By its manifest and the sizes of its files."""
        if path not in self._whole:
            try:
                with CheckpointReader(path):
                    self._whole.add(path)
            except CheckpointError:
                return False
        return True
