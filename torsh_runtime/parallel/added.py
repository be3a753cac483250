"""Parameters that a model gets after it was wrapped."""

from __future__ import annotations

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module
from torsh_runtime.framework.models import all_parameters, tables, trained_parameters


class Added:
    """Finds parameters added to one model, whose wrapper keeps its parameters alive."""

    def __init__(self, model: Module) -> None:
        self._model = model
        named = all_parameters(model)
        self._known = {id(parameter) for _, parameter in named}
        self._remember()

    def names(self) -> list[str]:
        """Return the added parameters that want gradients. The model is only walked if it has
        changed."""
        if self._seen == [[*map(id, table.values())] for table in self._tables]:
            return []
        named = trained_parameters(self._model)
        found = [name for name, parameter in named if id(parameter) not in self._known]
        if not found:
            self._remember()
        return found

    def problem(self) -> str:
        """Return the message about added parameters, or "" if there are none."""
        if not (found := self.names()):
            return ""
        names, more = ", ".join(map(repr, found[:5])), len(found) - 5
        return (
            f"the model has parameters that it did not have when it was wrapped: {names}"
            f"{f' and {more} more' if more > 0 else ''}. They would be no part of what ranks "
            f"average: add, replace or resize layers, and call load_state_dict(assign=True), "
            f"before the model is wrapped"
        )

    def check(self) -> None:
        """Raise ConfigError if parameters were added."""
        if problem := self.problem():
            raise ConfigError(problem)

    def _remember(self) -> None:
        self._tables = tables(self._model)
        self._seen = [[*map(id, table.values())] for table in self._tables]
