"""`LoadedModel`: what `load` gives, and how its functions run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from replicax.checkpoint.errors import SavedModelError
from replicax.core import nest
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.spec import TensorSpec
from replicax.engine.contexts import stack
from replicax.engine.functions.function import Function, function
from replicax.saved_model.structure import from_json
from replicax.values.operators import plain
from replicax.variables.variable import Variable


class LoadedModel:
    """The functions and variables of a saved model.

    A function is an attribute, and so is a variable whose key is a plain name; every one can be
    asked for by ``model[key]``. Loaded in the scope of a strategy, the variables are distributed
    and the functions are used in ``run``; gradients go through them as through other functions.

    Attributes:
        path: Where it was loaded from.
        functions: The functions by name; each is a `replicax.Function`.
        signatures: The documented name of `functions`.
        variables: All variables, in the order of their keys.
        trainable_variables: Those that gradients are usually taken with respect to.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> w = rx.Variable(2.0)
        >>> triple = rx.function(lambda x: (w + 1) * x, input_signature=[rx.TensorSpec([])])
        >>> path = rx.saved_model.save({"triple": triple, "w": w}, tempfile.mkdtemp() + "/model")
        >>> model = rx.saved_model.load(path)
        >>> model.w.assign(3.0).numpy(), model.triple(5.0)
        (array(3., dtype=float32), Array(20., dtype=float32))
    """

    def __init__(
        self,
        path: str,
        functions: Mapping[str, Function[..., Any]],
        variables: Mapping[str, Variable],
        values: Mapping[str, Any],
    ) -> None:
        """Used by `load`."""
        self.path = path
        self.functions = dict(functions)
        self.signatures = self.functions
        self._by_key = dict(variables)
        self._values = dict(values)
        self.variables = tuple(variables[key] for key in sorted(variables))
        self.trainable_variables = tuple(v for v in self.variables if v.trainable)

    def __getitem__(self, key: str) -> Any:
        """The function, variable or Python value that was saved by this key."""
        for held in (self.functions, self._by_key, self._values):
            if key in held:
                return held[key]
        raise KeyError(f"the saved model {self.path} has no {key!r}; it has {sorted(self)}.")

    def __iter__(self) -> Iterator[str]:
        """The keys."""
        return iter([*self.functions, *self._by_key, *self._values])

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def __dir__(self) -> list[str]:
        """The attributes, with those that were saved."""
        return sorted({*super().__dir__(), *self})

    def __repr__(self) -> str:
        variables = len(self.variables)
        return f"<LoadedModel {sorted(self.functions)} with {variables} variables>"


def function_of(
    name: str,
    program: export.Exported,
    description: Mapping[str, Any],
    variables: Mapping[str, Variable],
) -> Function[..., Any]:
    """The function of a saved program, which reads and assigns these variables.

    Args:
        name: Its name.
        program: What was saved.
        description: What the saved model says of it.
        variables: Its variables, by their keys.
    """
    read = [variables[key] for key in description["read"]]
    written = [variables[key] for key in description["written"]]
    dtypes = [np.dtype(argument["dtype"]) for argument in description["arguments"]]
    results = program.out_avals[len(written) :]

    def call(*args: Any) -> Any:
        arrays = [
            jnp.asarray(plain(leaf), dtype)
            for leaf, dtype in zip(nest.flatten(args)[0], dtypes, strict=True)
        ]
        for variable in written:
            _require_one_meaning(name, variable)
        if any(_is_empty(array, argument) for array, argument in _pairs(arrays, description)):
            new, outputs = [], _nothing(name, results, written)
        else:
            new, outputs = program.call([v.read_value() for v in read], arrays)
        for variable, value in zip(written, new, strict=True):
            variable.assign(value)
        return from_json(description["outputs"], iter(outputs))

    call.__name__ = call.__qualname__ = name
    specs = [TensorSpec(a["shape"], a["dtype"]) for a in description["arguments"]]
    return function(call, input_signature=from_json(description["inputs"], iter(specs)))


def _pairs(arrays: list[Any], description: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    return zip(arrays, description["arguments"], strict=True)


def _is_empty(array: Any, argument: Mapping[str, Any]) -> bool:
    open_dims = [size is None for size in argument["shape"]]
    return any(size == 0 and is_open for size, is_open in zip(array.shape, open_dims, strict=True))


def _nothing(name: str, results: Any, written: list[Variable]) -> list[jax.Array]:
    """The results for an empty part of a batch: JAX exports programs for one example or more."""
    rows = [aval.shape[0] if aval.shape else 1 for aval in results]
    if written or any(isinstance(size, int) for size in rows):
        raise SavedModelError(
            f"function {name!r} of a saved model was called with a batch of no examples, and has "
            "results that are not one for each example. Leave out such batches: drop the last "
            "one (drop_remainder=True), or take a size that gives every replica an example."
        )
    return [
        jnp.zeros([0, *(s if isinstance(s, int) else 0 for s in aval.shape[1:])], aval.dtype)
        for aval in results
    ]


def _require_one_meaning(name: str, variable: Variable) -> None:
    """Raises where it is not known whether what replicas assign was meant to be added."""
    entry = stack.top()
    if (
        entry is not None
        and entry.mode is stack.Mode.REPLICA
        and entry.strategy.num_replicas_in_sync > 1
        and variable.aggregation is VariableAggregation.SUM
        and variable.synchronization is not VariableSynchronization.ON_READ
    ):
        raise SavedModelError(
            f"function {name!r} of a saved model assigns variable {variable.name!r}, whose "
            f"aggregation is SUM, on {entry.strategy.num_replicas_in_sync} replicas. A saved "
            "program holds only the new value, and the replicas' additions cannot be told from it. "
            "Call the function outside run, or assign the variable in a function of your own."
        )
