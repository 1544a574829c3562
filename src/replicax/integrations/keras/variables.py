"""Keras variables that keep their value in a variable of a strategy.

`StrategyVariable` is the whole connection: Keras reads and assigns as ever, and the engine does
what the context asks for. Which kind of variable it is follows from what Keras says of it:

====================================  ==========================================
in Keras                              in the strategy
====================================  ==========================================
trainable, or state of an optimizer   mirrored
``synchronization="on_read"``         sync on read (metrics: SUM)
an `aggregation` was given            mirrored, with that aggregation
any other that is not trainable       sync on read: floats are averaged (the
                                      statistics of BatchNormalization), of
                                      counters and seeds replica 0's is read
====================================  ==========================================
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.errors import VariableError
from replicax.integrations.keras import internals
from replicax.variables.variable import Variable

_AGGREGATIONS = {
    "none": VariableAggregation.NONE,
    "mean": VariableAggregation.MEAN,
    "sum": VariableAggregation.SUM,
    "only_first_replica": VariableAggregation.ONLY_FIRST_REPLICA,
}

_is_of_optimizer: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "replicax_keras_optimizer", default=False
)
_reference: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "replicax_keras_reference", default=None
)


class StrategyVariable(keras.Variable):
    """A `keras.Variable` whose value lives in a variable of a strategy.

    Created by ``keras.Variable(...)`` in a strategy's scope; nobody calls this class.

    Attributes:
        strategy: The strategy that it belongs to.
    """

    strategy: Any = None
    _held: Variable | None = None
    _is_mirrored: bool = False

    @property
    def replicax_variable(self) -> Variable:
        """The variable that has the value."""
        if self._held is None:
            raise VariableError(
                f"Keras variable {self.path!r} has no value yet. Build the model first: call it, "
                "or model.build(input_shape)."
            )
        return self._held

    @property
    def _value(self) -> Any:
        held = self._held
        if held is None:
            return None
        if internals.in_symbolic_scope():  # only shapes are computed there
            return jnp.zeros(held.shape, held.dtype)
        return held.read_value()

    @_value.setter
    def _value(self, value: Any) -> None:
        if value is not None:
            self._direct_assign(value)

    def _initialize(self, value: Any) -> None:
        self._shape = self._validate_shape(value.shape)
        with self.strategy.extended.creation_scope():
            self._held = self._made(value)

    def _initialize_with_initializer(self, initializer: Any) -> None:
        with self.strategy.extended.creation_scope():
            self._initialize(self._convert_to_tensor(initializer(self._shape, dtype=self._dtype)))

    def _direct_assign(self, value: Any) -> None:
        self.replicax_variable.assign(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype)

    def assign_add(self, value: Any) -> Any:
        """Adds `value`; in a replica, what all of them add is combined by the aggregation."""
        return self._change("assign_add", value)

    def assign_sub(self, value: Any) -> Any:
        """Subtracts `value`; in a replica, what all subtract is combined by the aggregation."""
        return self._change("assign_sub", value)

    def _change(self, method: str, value: Any) -> Any:
        held = self._held
        is_summed = held is not None and held.aggregation is VariableAggregation.SUM
        on_read = held is not None and held.synchronization is VariableSynchronization.ON_READ
        if held is None or not is_summed or on_read or internals.in_stateless_scope():
            return getattr(super(), method)(value)
        getattr(held, method)(self._convert_to_tensor(value, dtype=self._dtype))
        return self.value

    def _made(self, value: Any) -> Variable:
        """The variable for this one, with `value` in every copy."""
        reference = _reference.get()
        held = getattr(reference, "_held", None)
        synchronization, aggregation = self._kind(jnp.dtype(value.dtype))
        options: dict[str, Any] = {}
        place: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if held is not None and held.strategy is self.strategy:
            place = self.strategy.extended.colocate_vars_with(held)
            if any(pieces > 1 for pieces in held.partition_dimensions):
                options["partition_dimensions"] = held.partition_dimensions
        with place:
            made = Variable(
                value,
                trainable=self.trainable,
                name=self.path,
                synchronization=synchronization,
                aggregation=aggregation,
                **options,
            )
        is_shared = synchronization is VariableSynchronization.ON_READ
        if is_shared and aggregation is VariableAggregation.SUM and np.any(np.asarray(value)):
            made.assign(value)  # so that a read gives it once, and not once for each replica
        return made

    def _kind(self, dtype: Any) -> tuple[VariableSynchronization, VariableAggregation]:
        aggregation = _AGGREGATIONS[self.aggregation]
        if self._is_mirrored:
            return VariableSynchronization.ON_WRITE, VariableAggregation.NONE
        is_given = aggregation is not VariableAggregation.NONE
        on_read = self.synchronization == "on_read"
        if not on_read and (self.trainable or is_given or self.synchronization == "on_write"):
            return VariableSynchronization.ON_WRITE, aggregation
        if not is_given:
            is_float = jnp.issubdtype(dtype, jnp.inexact) and dtype.itemsize > 1
            aggregation = VariableAggregation.ONLY_FIRST_REPLICA
            if is_float and not on_read:
                aggregation = VariableAggregation.MEAN
        return VariableSynchronization.ON_READ, aggregation


@contextlib.contextmanager
def of_optimizer(reference: Any = None) -> Iterator[None]:
    """Variables created inside are state of an optimizer; a slot goes where `reference` is."""
    reference = _reference.get() if reference is None else reference
    tokens = _is_of_optimizer.set(True), _reference.set(reference)
    try:
        yield
    finally:
        _is_of_optimizer.reset(tokens[0])
        _reference.reset(tokens[1])


def new(strategy: Any) -> StrategyVariable:
    """A variable of `strategy` that Keras has yet to initialise."""
    variable: StrategyVariable = object.__new__(StrategyVariable)
    variable.strategy = strategy
    variable._is_mirrored = _is_of_optimizer.get()
    return variable


def is_on_read(variable: StrategyVariable) -> bool:
    """Whether every replica has a value of its own."""
    return variable.replicax_variable.synchronization is VariableSynchronization.ON_READ


def adopt(variable: Any, strategy: Any, *, mirrored: bool) -> None:
    """Makes a plain Keras variable one of `strategy`, with the value it has.

    Args:
        variable: The variable; it stays the same object.
        strategy: The strategy that takes it over.
        mirrored: Whether it is a weight or state of an optimizer, whatever else is known of it.
    """
    value = variable._value
    vars(variable).pop("_value", None)
    variable.__class__ = StrategyVariable
    variable.strategy = strategy
    variable._is_mirrored = mirrored
    if value is not None:
        variable._initialize(value)
