"""Collects what ``extended.update`` writes to the single copies of variables.

Eagerly, the update function runs once per copy; the copies become visible
together, when all of them have been written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replicax.backend import placement
from replicax.core.errors import VariableError
from replicax.engine.storage import Storage
from replicax.engine.trace import epoch
from replicax.values.consistency import require_same


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
        epoch.advance()

    def pending(self, storage: Storage, index: int) -> Any:
        """The new value of one copy, or None."""
        return self._written.get(storage, {}).get(index)

    def commit(self) -> None:
        """Stores what was written: all of it, or nothing if it raises.

        Raises:
            VariableError: If some copies of a variable were written and others not, or if they
                must be equal and are not.
        """
        for storage, copies in self._written.items():
            if len(copies) != self.num_copies:
                raise VariableError(
                    f"extended.update wrote copies {sorted(copies)} of variable {storage.name!r} "
                    f"out of {self.num_copies}. Write every copy, or none."
                )
            if storage.has_equal_copies:
                _require_equal(storage.name, copies)
                what = f"extended.update of variable {storage.name!r}"
                require_same(copies[0], what, storage.mesh)
        for storage, copies in self._written.items():
            storage.set_components([copies[index] for index in range(self.num_copies)])


def _require_equal(name: str, copies: dict[int, Any]) -> None:
    """Refuses values that would let the copies of a mirrored variable drift apart."""
    for index, value in copies.items():
        if not placement.are_same([copies[0], value]):
            first, other = (" ".join(str(np.asarray(v)).split()) for v in (copies[0], value))
            raise VariableError(
                f"extended.update would give the copies of variable {name!r} different values: "
                f"{first:.80} to copy 0 and {other:.80} to copy {index}. The function is called "
                "once for each copy and must assign the same value each time. Make what changes, "
                "such as random numbers, before the call and pass it through args; or create the "
                "variable with synchronization=ON_READ, whose copies may differ."
            )
