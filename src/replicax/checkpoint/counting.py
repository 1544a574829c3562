"""A number that is saved with a checkpoint, under a name of the library's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicax.checkpoint.checkpoint import Checkpoint


class Count:
    """A number of runs or steps, also of earlier processes.

    Attributes:
        value: The number.

    Example:
        >>> count = Count()
        >>> count.load_state_dict({"value": 3})
        >>> count.value
        3
    """

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, Any]:
        """What is saved."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what was saved."""
        self.value = int(state["value"])


def attached_count(checkpoint: Checkpoint, name: str) -> Count:
    """The count of this name in `checkpoint`; a new one gets what a restore has kept for it.

    So it is asked for after the restore: a checkpoint that was saved without it is no mismatch.
    """
    known = checkpoint._objects.get(name)
    if not isinstance(known, Count):
        known = Count()
        setattr(checkpoint, name, known)
    return known
