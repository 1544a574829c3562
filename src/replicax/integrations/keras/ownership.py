"""Which strategy a Keras object belongs to, and what happens to one that belongs to none.

A layer belongs to the strategy in whose scope it was created, also when it makes its
variables later. Optimizers and metrics are taken over when a model is compiled with them;
the layers of a model only by `distribute`, because their values are on one device, where
somebody may be using them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any

import keras

from replicax.core.errors import ContextError, VariableError
from replicax.engine.contexts.stack import has_strategy
from replicax.integrations.keras import additive, internals, variables
from replicax.strategies.current import get_replica_context, get_strategy

_owners: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def strategy_in_force() -> Any:
    """The strategy of the scope or the run that code is in, or None.

    Raises:
        ContextError: If Keras runs in a way that no strategy can distribute.
    """
    if not has_strategy():
        return None
    _require_supported()
    return get_strategy()


def note_owner(layer: Any) -> bool:
    """Remembers in whose scope `layer` is being created; False outside of every scope."""
    strategy = strategy_in_force()
    if strategy is None:
        return False
    _owners[layer] = strategy
    return True


def owner_of(layer: Any) -> Any:
    """The strategy in whose scope `layer` was created, or None."""
    return _owners.get(layer)


def scope_of(layer: Any) -> contextlib.AbstractContextManager[Any]:
    """The scope of the layer's strategy, if no strategy is in force."""
    owner = owner_of(layer)
    return contextlib.nullcontext() if owner is None or has_strategy() else owner.scope()


def scope_of_optimizer(
    optimizer: Any, reference: Any = None
) -> contextlib.AbstractContextManager[Any]:
    """The scope of the strategy of an optimizer or of one of its weights, if none is in force."""
    for variable in (reference, getattr(optimizer, "_iterations", None)):
        if isinstance(variable, variables.StrategyVariable) and not has_strategy():
            return variable.strategy.scope()
    return contextlib.nullcontext()


def distribute(model: Any, strategy: Any) -> Any:
    """Takes a Keras model that was made outside of the scope over, with its weights.

    Its variables, those of its optimizer and its metrics keep their values, and get a copy on
    each replica.

    Args:
        model: A Keras model or layer; compiled or not, built or not.
        strategy: The strategy that trains it from now on.

    Returns:
        The same model.

    Raises:
        VariableError: If some of it belongs to another strategy.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> import replicax as rx
        >>> from replicax.integrations.keras import distribute
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> model = distribute(model, strategy)
        >>> history = model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
        >>> len(history.history["loss"])
        1
    """
    _require_supported()
    layers = internals.flat_layers(model)
    for layer in layers:
        owner = owner_of(layer)
        if owner is not None and owner is not strategy:
            raise VariableError(
                f"layer {layer.name!r} belongs to {owner!r} and cannot be distributed by "
                f"{strategy!r}. Create a copy in that strategy's scope: "
                "keras.models.clone_model(model)."
            )
    weights = {id(v) for layer in layers for v in internals.weights_made_trainable(layer)}
    with strategy.scope():
        for layer in layers:
            _owners[layer] = strategy
        for variable in model.variables:
            _take_over(variable, strategy, mirrored=id(variable) in weights)
        if isinstance(model, keras.Model):
            take_over_compiled(model, strategy)
            if model.compiled:
                model.train_function = model.test_function = model.predict_function = None
    return model


def take_over_compiled(model: Any, strategy: Any) -> None:
    """Makes the state of the model's optimizer and metrics that of `strategy`."""
    if getattr(model, "optimizer", None) is not None:
        for variable in model.optimizer.variables:
            _take_over(variable, strategy, mirrored=True)
    for variable in model.metrics_variables:
        _take_over(variable, strategy, mirrored=False)
    for metric in model.metrics:
        for each in (metric, *getattr(metric, "metrics", ())):
            additive.watch(each)


def _take_over(variable: Any, strategy: Any, *, mirrored: bool) -> None:
    if not isinstance(variable, variables.StrategyVariable):
        variables.adopt(variable, strategy, mirrored=mirrored)
    elif variable.strategy is not strategy:
        raise VariableError(
            f"Keras variable {variable.path!r} belongs to {variable.strategy!r}, and is used with "
            f"{strategy!r}. Create the optimizer, the metrics and the model in one scope."
        )


def is_own(value: Any) -> bool:
    """Whether a Keras object keeps its state in variables of a strategy, if it has any."""
    held = [value] if isinstance(value, keras.Variable) else getattr(value, "variables", None)
    if held is None:
        held = [value.state]  # a SeedGenerator
    if not held and isinstance(value, keras.Layer):
        return value.built or owner_of(value) is not None
    return all(isinstance(variable, variables.StrategyVariable) for variable in held)


def strategy_for(model: Any, call: str) -> Any:
    """The strategy that `call` of `model` runs under; None if it is Keras's own affair.

    Raises:
        ContextError: If the model belongs to none or to another one than is in force.
    """
    current, owner = strategy_in_force(), owner_of(model)
    if current is not None and get_replica_context() is not None:
        raise ContextError(
            f"{call} of model {model.name!r} was called inside run of {current!r}. It runs all "
            "replicas itself: call it outside of run."
        )
    if current is owner:
        return owner
    if owner is None:
        raise ContextError(
            f"{call} of model {model.name!r}, whose first layer is {_first_layer(model)!r}, was "
            f"called in the scope of {current!r}, but the model was created outside of it. "
            "Create the model inside `with strategy.scope():`, or take it over with "
            "replicax.integrations.keras.distribute(model, strategy)."
        )
    if current is not None:
        raise ContextError(
            f"{call} of model {model.name!r}, which belongs to {owner!r}, was called in the scope "
            f"of {current!r}. Leave that scope first."
        )
    _require_supported()
    return owner


def require_own(model: Any, strategy: Any) -> None:
    """Raises unless every weight of `model` can be trained by `strategy`.

    Raises:
        VariableError: If a layer was made outside of the scope, or keeps a value for each
            example of the batch.
    """
    for layer in reversed(internals.flat_layers(model)):  # the inner ones first
        _require_own_variables(layer, layer.variables, strategy)
        if strategy.num_replicas_in_sync > 1 and getattr(layer, "stateful", False):
            raise VariableError(
                f"layer {layer.name!r} is stateful: it keeps a state for each example of the whole "
                f"batch, and {strategy!r} gives each of its {strategy.num_replicas_in_sync} "
                "replicas a part of the batch. Use stateful=False."
            )


def _require_own_variables(layer: Any, held: Iterable[Any], strategy: Any) -> None:
    for variable in held:
        if isinstance(variable, variables.StrategyVariable) and variable.strategy is strategy:
            continue
        if isinstance(variable, variables.StrategyVariable):
            where = f"belongs to {variable.strategy!r}"
        else:
            where = "was created outside of its scope"
        raise VariableError(
            f"variable {variable.path!r} of layer {layer.name!r} {where}, and is used with "
            f"{strategy!r}. Create the layer inside `with strategy.scope():`, or take it over with "
            "replicax.integrations.keras.distribute(layer, strategy)."
        )


def _first_layer(model: Any) -> str:
    inner = [layer for layer in internals.flat_layers(model) if layer is not model]
    return inner[0].name if inner else model.name


def _require_supported() -> None:
    if keras.backend.backend() != "jax":
        raise ContextError(
            f"Keras runs on {keras.backend.backend()!r}, and a Replicax strategy distributes JAX "
            "programs. Set the environment variable KERAS_BACKEND=jax before Keras is imported, or "
            "use Keras outside of the scope."
        )
    if internals.is_nnx_enabled():
        raise ContextError(
            "KERAS_NNX_ENABLED is set: Keras then keeps its variables in Flax NNX, where a "
            "strategy cannot reach them. Unset it before Keras is imported."
        )
    other = keras.distribution.distribution()
    if other is not None:
        raise ContextError(
            f"keras.distribution is set to {other!r}, and a Replicax strategy is in use. One of "
            "them distributes: call keras.distribution.set_distribution(None), or leave out the "
            "strategy."
        )
