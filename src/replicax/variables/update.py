"""Collects what ``extended.update`` writes to the single copies of variables.

Eagerly, the update function runs once per copy; the copies become visible
together, when all of them have been written.
"""

from __future__ import annotations

from typing import Any

from replicax.core.errors import VariableError
from replicax.variables.storage import Storage


class UpdateSession:
    """The copies written so far by one ``extended.update``.

    Attributes:
        num_copies: How many copies each variable must have.
    """

    def __init__(self, num_copies: int) -> None:
        """A session for variables of `num_copies` copies."""
        self.num_copies = num_copies
        self._written: dict[Storage, dict[int, Any]] = {}

    def write(self, storage: Storage, index: int, value: Any) -> None:
        """Notes a new value of one copy."""
        self._written.setdefault(storage, {})[index] = value

    def pending(self, storage: Storage, index: int) -> Any:
        """The new value of one copy, or None."""
        return self._written.get(storage, {}).get(index)

    def commit(self) -> None:
        """Stores what was written.

        Raises:
            VariableError: If some copies of a variable were written and others not.
        """
        for storage, copies in self._written.items():
            if len(copies) != self.num_copies:
                raise VariableError(
                    f"extended.update wrote copies {sorted(copies)} of variable {storage.name!r} "
                    f"out of {self.num_copies}. Write every copy, or none."
                )
        for storage, copies in self._written.items():
            storage.set_components([copies[index] for index in range(self.num_copies)])
