"""The iterator of a `Dataset`: one pass, with the user's view of the elements."""

from __future__ import annotations

from replicax.input.adapters.reading import Reading
from replicax.input.pipeline import elements
from replicax.input.pipeline.stage import Stage, open_pass


class DatasetIterator(Reading):
    """Reads one pass; `close`, or dropping it, ends its threads and closes its files."""

    @classmethod
    def _of_pass(cls, stage: Stage, epoch: int) -> DatasetIterator:
        """The pass `epoch` of a pipeline, of which `stage` is the last step."""
        return cls(open_pass(stage, epoch), elements.outward)
