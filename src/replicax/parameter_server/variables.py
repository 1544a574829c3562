"""Variables on servers: read from anywhere, changed where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from replicax.core.errors import VariableError
from replicax.engine.trace.frame import Frame, current_frame
from replicax.jax_internals.traces import is_staging
from replicax.parameter_server.messages import UpdateKind
from replicax.parameter_server.storage import ServerStorage
from replicax.parameter_server.tracing import (
    ClosureTrace,
    RowsKey,
    RowsPurpose,
    UpdatePurpose,
    require_closure,
)
from replicax.values.distributed import register_as_array
from replicax.values.operators import plain
from replicax.variables.conversion import check_dtype, converted
from replicax.variables.rows import RowUses
from replicax.variables.variable import COMBINES, Variable


@register_as_array
class ServerVariable(Variable):
    """A variable on a parameter server.

    Everywhere it is read as any other variable. In a closure a read gives the newest value, and
    an assignment is applied on the server when the closure is done; what the closure reads
    after its own assignment is the value it had read, changed in the same way.
    """

    __slots__ = ()

    _storage: ServerStorage  # pyright: ignore[reportIncompatibleVariableOverride]
    _reads_rows: ClassVar[bool] = True

    @property
    def shard_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of what each server holds of it, in the order of rows.

        Example:
            >>> import replicax as rx
            >>> cluster = rx.cluster_resolver.SimpleClusterResolver(
            ...     {"ps": ["a:1", "a:2"], "worker": ["b:1"]})
            >>> halves = rx.experimental.partitioners.FixedShardsPartitioner(2)
            >>> with rx.ParameterServerStrategy(cluster, halves).scope():
            ...     table = rx.Variable([[0.0], [1.0], [2.0]])
            >>> table.shard_shapes
            ((2, 1), (1, 1))
        """
        return tuple(shard.shape for shard in self._storage.shards)

    def devices(self) -> set[Any]:
        """The servers that hold it, by name."""
        return {f"/job:ps/task:{shard.server}" for shard in self._storage.shards}

    # -- rows --------------------------------------------------------------------------------

    def gather(self, rows: ArrayLike) -> jax.Array:
        """Some rows of the variable; only they travel.

        Its gradient by ``value_and_grad`` is a `RowGradient`, as long as the loss reads the
        variable in no other way.

        Args:
            rows: Whole numbers, an array of any shape. Out of bounds they mean what they mean for
                an array of JAX: negative ones count from the end, others are the nearest row.

        Returns:
            An array of the shape of `rows`, and that of a row.

        Raises:
            VariableError: If the variable has no rows, or `rows` are not whole numbers.
            TraceError: In an inner transformation of a closure, such as ``lax.scan``.

        Example:
            >>> import replicax as rx
            >>> cluster = rx.cluster_resolver.SimpleClusterResolver(
            ...     {"ps": ["a:1"], "worker": ["b:1"]})
            >>> with rx.ParameterServerStrategy(cluster).scope():
            ...     table = rx.Variable([[0.0], [1.0], [2.0]])
            >>> table.gather([2, 0])
            Array([[2.],
                   [0.]], dtype=float32)
        """
        return self._gathered(self._checked_rows(rows, "gather"))

    def __getitem__(self, index: Any) -> Any:
        index = plain(index)
        is_rows = isinstance(index, (jax.Array, np.ndarray, list)) and bool(self.shape)
        if is_rows and jnp.issubdtype(jnp.asarray(index).dtype, jnp.integer):
            return self.gather(jnp.asarray(index))
        return self.read_value()[index]

    def add_rows(self, rows: ArrayLike, values: ArrayLike) -> ServerVariable:
        """Adds to some rows; a row that occurs twice is added to twice.

        Args:
            rows: Which; those out of bounds are left out.
            values: A row for each.

        Returns:
            This variable.

        Raises:
            VariableError: If shapes or dtypes do not fit.
        """
        return self._change_rows(UpdateKind.ADD_ROWS, rows, values, "add_rows")

    def assign_rows(self, rows: ArrayLike, values: ArrayLike) -> ServerVariable:
        """Replaces some rows; of one that occurs twice it is not said which value it gets.

        Args:
            rows: Which; those out of bounds are left out.
            values: A row for each.

        Returns:
            This variable.

        Raises:
            VariableError: If shapes or dtypes do not fit.
        """
        return self._change_rows(UpdateKind.ASSIGN_ROWS, rows, values, "assign_rows")

    def _checked_rows(self, rows: Any, call: str) -> jax.Array:
        rows = jnp.asarray(plain(rows))
        if not self.shape or not jnp.issubdtype(rows.dtype, jnp.integer):
            raise VariableError(
                f"{call} of variable {self.name!r} of shape {self.shape} got rows of dtype "
                f"{rows.dtype}. Rows are whole numbers, of a variable with at least one dim."
            )
        return jnp.where(rows < 0, rows + self.shape[0], rows)

    def _gathered(self, rows: jax.Array) -> Any:
        rows = jnp.clip(rows, 0, max(self.shape[0] - 1, 0)).astype(jnp.int32)
        storage, trace = self._storage, self._trace("gather")
        if trace is None:
            return storage.cluster.rows_of(storage, np.asarray(rows))
        cell = trace.frame.cells.get(storage)
        if cell is not None and cell.written:
            return self.read_value()[rows]
        trace.require_known(storage, "gather")
        what = f"gather of variable {self.name!r}"
        place = trace.emit(RowsPurpose(), rows, what)
        shape = (*rows.shape, *self.shape[1:])
        name = f"rows of {self.name!r}"
        found = trace.frame.read(RowsKey(name, shape, self.dtype, storage, place))
        tracked = RowUses.of(self)
        return found if tracked is None else tracked.track(found, rows)

    def _change_rows(self, kind: UpdateKind, rows: Any, values: Any, call: str) -> ServerVariable:
        rows = self._checked_rows(rows, call)
        rows = jnp.where(rows < 0, self.shape[0], rows).reshape(-1).astype(jnp.int32)
        values = jnp.asarray(plain(values))
        check_dtype(values.dtype, self._storage, call)
        wanted = (rows.size, *self.shape[1:])
        if values.size != int(np.prod(wanted)):
            raise VariableError(
                f"{call} of variable {self.name!r} of shape {self.shape} got {rows.size} rows and "
                f"values of shape {values.shape}; for each row one of shape {self.shape[1:]}."
            )
        values = values.reshape(wanted).astype(self.dtype)
        trace, storage = self._trace(call), self._storage
        if trace is None:
            storage.cluster.update(storage, kind, values, rows)
            return self
        trace.require_known(storage, call)
        what = f"{call} of variable {self.name!r}"
        place = trace.emit(RowsPurpose(), rows, what)
        trace.emit(UpdatePurpose(kind, storage, place), values, what)
        at = trace.frame.read(storage).at[rows]
        change: Callable[..., Any] = at.add if kind is UpdateKind.ADD_ROWS else at.set
        trace.frame.write(storage, change(values, mode="drop"))
        return self

    # -- the whole ---------------------------------------------------------------------------

    def read_value(self) -> jax.Array:
        """The current value; a snapshot that later assignments do not change."""
        uses = RowUses.of(self)
        if uses is not None:
            uses.is_read_whole = True
        return super().read_value()

    def _trace(self, use: str) -> ClosureTrace | None:
        """The closure that is being traced here; None where values are at hand.

        Raises:
            ContextError: In a trace that no coordinator started.
        """
        if current_frame() is not None:
            return require_closure(self._strategy, f"{use} of variable {self.name!r}")
        if is_staging():
            self._check_foreign_trace("read")
        return None

    def _read_traced(self, frame: Frame) -> Any:
        trace = require_closure(self._strategy, f"a read of variable {self.name!r}")
        trace.require_known(self._storage, "a read")
        return frame.read(self._storage)

    def _apply(self, method: str, value: Any) -> None:
        storage = self._storage
        value = converted(value, storage, method)
        kind = UpdateKind.ASSIGN if method == "assign" else UpdateKind.ADD
        delta = -value if method == "assign_sub" else value
        trace = self._trace(method)
        if trace is None:
            if method == "assign":
                storage.set_value(value)
            else:
                storage.cluster.update(storage, kind, np.asarray(delta))
            return
        if method != "assign":
            trace.require_known(storage, method)
        what = f"{method} of variable {self.name!r}"
        trace.emit(UpdatePurpose(kind, storage), jnp.asarray(delta), what)
        if method != "assign":
            value = COMBINES[method](trace.frame.read(storage), value).astype(storage.dtype)
        trace.frame.write(storage, jnp.asarray(value))
