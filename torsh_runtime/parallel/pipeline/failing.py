"""Tells all ranks of a pipeline what one of them raised."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import CommError, PipelineError, TorshError
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.pipeline.lanes import Lanes

T = TypeVar("T")
_PATIENCE = 2.0
"""Seconds for other ranks, which may be computing, to learn what was raised."""


class Failures:
    """Passes errors on among a pipeline's ranks. A rank that raises writes its error to the store
    and then aborts its groups, so that no rank waits for it; the others find the error there. In a
    mesh these are the groups of all axes. A rank that learns of an error aborts its own groups, so
    replicas, and ranks with parts of the same layers, learn of it, too.
    """

    def __init__(
        self, group: ProcessGroup, mesh: DeviceMesh | None = None, lanes: Lanes | None = None
    ) -> None:
        self._all = group if mesh is None else mesh.group
        self._ended = [lanes, group if mesh is None else mesh]
        self._key = f"pipeline/{self._all.name}"

    def telling(self, call: Callable[[], T]) -> T:
        """Return what call() returns, and pass on what it raises.

        Raises the PipelineError that it raises, or that made another rank abort. Errors that are no
        Exception, as Ctrl-C, end the step on all ranks as well: half of it is under way, which the
        next step would take for its own.
        """
        try:
            return call()
        except PipelineError as error:
            interrupt = error.__cause__
            if interrupt is not None and not isinstance(interrupt, Exception):
                self._tell(error)
                self._wait_for_others()
                raise interrupt from None
            if any(isinstance(each, CommError) for each in _causes(error)):
                raise self._told() or error from error.__cause__
            self._tell(error)
            self._wait_for_others()
            raise
        except CommError as error:
            told = self._told()
            if told is None:
                raise
            raise told from error
        except Exception:
            raise
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        for each in self._ended:
            if each is not None:
                each.abort()

    def _tell(self, error: PipelineError) -> None:
        _, (*facts,) = error.__reduce__()[:2]
        store = _store()
        if store is not None:
            with suppress(TorshError):
                store.compare_set(self._key, "", json.dumps(facts))
        self._abort()

    def _told(self) -> PipelineError | None:
        store = _store()
        with suppress(TorshError):
            if store is not None and store.check([self._key]):
                told = PipelineError(*json.loads(store.get(self._key)))
                self._abort()
                self._wait_for_others()
                return told
        return None

    def _wait_for_others(self) -> None:
        """Wait a little, because the store may end with this process."""
        store = _store()
        with suppress(TorshError):
            if store is not None:
                store.barrier(f"{self._key}/known", self._all.world_size, _PATIENCE)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _store() -> Any:
    """Return the job's store, which outlives groups; None where a group has no job."""
    make = getattr(default_group(), "store", None)
    return None if make is None else make()
