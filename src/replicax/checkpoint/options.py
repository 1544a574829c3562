"""`CheckpointOptions`: how a checkpoint is written."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """How a checkpoint is written.

    Attributes:
        enable_async: Whether ``save`` and ``write`` return before the files are written.
        experimental_enable_async_checkpoint: The same, by its older name.

    Example:
        >>> CheckpointOptions(enable_async=True).is_async
        True
    """

    enable_async: bool = False
    experimental_enable_async_checkpoint: bool = False

    @property
    def is_async(self) -> bool:
        """Whether to write in the background."""
        return self.enable_async or self.experimental_enable_async_checkpoint
