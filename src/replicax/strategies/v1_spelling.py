"""The names that ``tf.compat.v1`` has for what a strategy does; `Strategy` has them all.

Each says once what to write instead. What only a graph and a session could do
is not here, and asking for it says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from replicax.core import notices
from replicax.core.enums import InputReplicationMode
from replicax.core.errors import OutOfRangeError
from replicax.core.options import InputOptions, RunOptions
from replicax.input.context import InputContext
from replicax.input.iterator import DistributedIterator

_GRAPH_ERA = {
    "configure": "a strategy is complete when it is created. Pass devices to its constructor.",
    "update_config_proto": "there is no session, and so no ConfigProto to update.",
}


class V1Spelling:
    """Deprecated methods of `Strategy`."""

    if not TYPE_CHECKING:  # or type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            """Says why a name of the graph era is missing."""
            shown = f"{type(self).__name__!r} object has no attribute {name!r}"
            reason = _GRAPH_ERA.get(name)
            text = shown if reason is None else f"{shown}: {reason}"
            raise AttributeError(text, name=name, obj=self)

    def experimental_run_v2(
        self: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Deprecated: ``run``.

        Args:
            fn: As for ``run``.
            args: As for ``run``.
            kwargs: As for ``run``.
            options: As for ``run``.

        Returns:
            What ``run`` returns.
        """
        notices.deprecate("Strategy.experimental_run_v2", "Strategy.run")
        return self.run(fn, args, kwargs, options)

    def experimental_run(self: Any, fn: Callable[..., Any], input_iterator: Any = None) -> Any:
        """Deprecated: ``run``, with the next element of `input_iterator` as argument.

        Args:
            fn: As for ``run``.
            input_iterator: Gives the argument; without it `fn` gets none.

        Returns:
            What ``run`` returns.

        Raises:
            OutOfRangeError: If the iterator has ended.
        """
        notices.deprecate("Strategy.experimental_run", "Strategy.run")
        with self.scope():
            if input_iterator is None:
                return self.run(fn)
            try:
                item = next(input_iterator)
            except StopIteration:
                raise OutOfRangeError(
                    "the input_iterator of Strategy.experimental_run has ended. Make a new one "
                    "for every epoch."
                ) from None
            return self.run(fn, args=(item,))

    def make_dataset_iterator(self: Any, dataset: Any) -> DistributedIterator:
        """Deprecated: ``iter(distribute_dataset(dataset))``.

        Args:
            dataset: As for ``distribute_dataset``.

        Returns:
            The iterator.
        """
        notices.deprecate(
            "Strategy.make_dataset_iterator", "iter(Strategy.experimental_distribute_dataset(...))"
        )
        return self.distribute_dataset(dataset).__iter__()

    def make_input_fn_iterator(
        self: Any,
        input_fn: Callable[[InputContext], Any],
        replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
    ) -> DistributedIterator:
        """Deprecated: ``iter(distribute_datasets_from_function(input_fn))``.

        Args:
            input_fn: As the `dataset_fn` of ``distribute_datasets_from_function``.
            replication_mode: How often `input_fn` is called.

        Returns:
            The iterator.
        """
        notices.deprecate(
            "Strategy.make_input_fn_iterator",
            "iter(Strategy.distribute_datasets_from_function(...))",
        )
        options = InputOptions(experimental_replication_mode=replication_mode)
        return self.distribute_datasets_from_function(input_fn, options).__iter__()

    def unwrap(self: Any, value: Any) -> tuple[Any, ...]:
        """Deprecated: ``experimental_local_results``.

        Args:
            value: As for ``experimental_local_results``.

        Returns:
            One value for each replica of this worker.
        """
        notices.deprecate("Strategy.unwrap", "Strategy.experimental_local_results")
        return self.experimental_local_results(value)

    def group(self: Any, value: Any, name: str | None = None) -> None:
        """Deprecated: nothing. What made `value` has happened, there is nothing left to group.

        Args:
            value: Ignored.
            name: Ignored.
        """
        del value, name
        notices.deprecate("Strategy.group", "nothing (there is no graph to order)")

    @contextlib.contextmanager
    def colocate_vars_with(self: Any, colocate_with_variable: Any) -> Iterator[None]:
        """Deprecated: ``extended.colocate_vars_with``.

        Args:
            colocate_with_variable: As for ``extended.colocate_vars_with``.

        Returns:
            A context manager.
        """
        notices.deprecate("Strategy.colocate_vars_with", "Strategy.extended.colocate_vars_with")
        with self.extended.colocate_vars_with(colocate_with_variable):
            yield
