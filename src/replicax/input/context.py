"""`InputContext`: what a ``dataset_fn`` is told about its place."""

from __future__ import annotations

from replicax.core.errors import BatchError


class InputContext:
    """Which of all input pipelines a ``dataset_fn`` makes.

    Args:
        num_input_pipelines: How many pipelines there are.
        input_pipeline_id: Which of them is made.
        num_replicas_in_sync: How many replicas they feed together.

    Example:
        >>> context = InputContext(num_input_pipelines=2, input_pipeline_id=1,
        ...                        num_replicas_in_sync=4)
        >>> context.get_per_replica_batch_size(32)
        8
    """

    __slots__ = ("_input_pipeline_id", "_num_input_pipelines", "_num_replicas_in_sync")

    def __init__(
        self,
        num_input_pipelines: int = 1,
        input_pipeline_id: int = 0,
        num_replicas_in_sync: int = 1,
    ) -> None:
        """The context of one pipeline."""
        if not 0 <= input_pipeline_id < num_input_pipelines:
            raise ValueError(
                f"input_pipeline_id is {input_pipeline_id}; expected 0 to "
                f"{num_input_pipelines - 1}, for num_input_pipelines={num_input_pipelines}."
            )
        self._num_input_pipelines = num_input_pipelines
        self._input_pipeline_id = input_pipeline_id
        self._num_replicas_in_sync = num_replicas_in_sync

    @property
    def num_input_pipelines(self) -> int:
        """How many pipelines there are: one per worker, or one per replica."""
        return self._num_input_pipelines

    @property
    def input_pipeline_id(self) -> int:
        """Which pipeline this is, from 0."""
        return self._input_pipeline_id

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas all pipelines feed together."""
        return self._num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Examples per replica of a global batch.

        Args:
            global_batch_size: Examples of one step, on all replicas.

        Returns:
            The number of examples.

        Raises:
            BatchError: If the replicas do not divide it.
        """
        if global_batch_size % self._num_replicas_in_sync:
            raise BatchError(
                f"global_batch_size is {global_batch_size}, which {self._num_replicas_in_sync} "
                f"replicas do not divide: {global_batch_size % self._num_replicas_in_sync} left "
                f"over. Use a multiple of {self._num_replicas_in_sync}."
            )
        return global_batch_size // self._num_replicas_in_sync

    def __repr__(self) -> str:
        return (
            f"InputContext(num_input_pipelines={self._num_input_pipelines}, "
            f"input_pipeline_id={self._input_pipeline_id}, "
            f"num_replicas_in_sync={self._num_replicas_in_sync})"
        )
