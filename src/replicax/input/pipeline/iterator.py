"""The iterator of a `Dataset`: one pass, with the user's view of the elements."""

from __future__ import annotations

from typing import Any

from replicax.core.errors import BatchError
from replicax.input.adapters.reading import Reading
from replicax.input.pipeline import elements
from replicax.input.pipeline.stage import Stage, open_pass

_GRAIN_CANNOT_STACK = "Expected all input elements to have the same structure"


class DatasetIterator(Reading):
    """Reads one pass; `close`, or dropping it, ends its threads and closes its files."""

    @classmethod
    def _of_pass(cls, stage: Stage, epoch: int) -> DatasetIterator:
        """The pass `epoch` of a pipeline, of which `stage` is the last step."""
        return cls(open_pass(stage, epoch), elements.outward)

    def __next__(self) -> Any:
        """The next element.

        Raises:
            BatchError: If the elements of one batch differ in shape or structure.
        """
        try:
            return super().__next__()
        except ValueError as error:
            if not str(error).startswith(_GRAIN_CANNOT_STACK):
                raise
            raise BatchError(
                f"the elements of one batch cannot be stacked; they are {_shapes(error)}. Use "
                "padded_batch for elements of several shapes, or map them to one shape and "
                "structure."
            ) from error


def _shapes(error: ValueError) -> str:
    """What Grain lists, in one line."""
    return " ".join(str(error).partition(":")[2].split())
