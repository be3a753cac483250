"""For objects that are closed: `with` closes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Leaving a `with` block calls close()."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
