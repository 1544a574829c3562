"""What of Keras is replaced, and how: the only place that changes anything in Keras.

========================================  ==================================================
replaced                                  so that
========================================  ==================================================
``Variable.__new__``                      a variable created in a scope is a `StrategyVariable`
``Layer.__new__``                         a layer knows the strategy that it was created under,
                                          and is built in that scope
``Layer.add_weight``                      the same for what is added later, such as LoRA
``Metric.__init__``                       what replicas count is checked to be a sum
``Optimizer.__init__, add_variable,       the state of an optimizer is mirrored, and each slot
add_variable_from_reference``             is where its weight is
``Optimizer.apply, stateless_apply``      gradients are summed over the replicas first
``Optimizer.scale_loss``                  the loss is weighed by the replica's examples
``LossScaleOptimizer`` likewise           because it has these methods of its own
``SeedGenerator.next``                    replicas draw different random numbers
``losses.loss.reduce_values, apply_mask`` sums and masked means are those of the whole batch
``Trainer.compile``                       its metrics and optimizer are created in the scope
``Trainer.fit`` and its sisters           they run in the scope, and check the model first
``Model.save, save_weights, export``       all workers call it, the chief's file stays
``BackupAndRestore._save_model,            only the chief has the folder with the backup
on_train_end``
``file_utils.makedirs``                    workers may make one folder at the same time
``Trainer.make_train_function`` and       a step runs on all replicas
its sisters
``Trainer._get_jax_state``                Keras does not copy the state around
``JAXEpochIterator._get_iterator``        batches go to the replicas, not first to one device
``data_adapters.get_data_adapter``        our datasets can be given to `fit`
========================================  ==================================================

Outside of every scope, for a model made outside of every scope, each does what Keras does.
``tests/integrations/keras/test_hooks.py`` has a test for each row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from replicax.engine.functions import foreign_state
from replicax.integrations.keras import (
    adapters,
    additive,
    internals,
    ownership,
    seeds,
    shares,
    statistics,
    steps,
    updates,
    variables,
    workers,
)

_replaced: list[tuple[Any, str]] = []


def install() -> None:
    """Replaces what the table says; once in a process."""
    if _replaced:
        return
    _replace_new(keras.Variable, _new_variable)
    if keras.backend.backend() != "jax" or internals.is_nnx_enabled():
        return  # creating a variable in a scope raises, and there is nothing else to do
    foreign_state.accept("keras", ownership.is_own)
    _replace_new(keras.Layer, _new_layer)
    _replace(keras.Metric, "__init__", _init_metric)
    _replace(keras.Layer, "add_weight", _add_weight)
    optimizer, scaling = keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer
    for method in ("__init__", "add_variable", "add_variable_from_reference"):
        _replace(optimizer, method, _of_optimizer)
    for cls in (optimizer, scaling):
        _replace(cls, "apply", updates.apply)
        _replace(cls, "stateless_apply", updates.stateless_apply)
        _replace(cls, "scale_loss", _scale_loss)
    _replace(keras.random.SeedGenerator, "next", seeds.next_seed)
    _replace(internals.loss_functions, "reduce_values", _reduce_values)
    _replace(internals.loss_functions, "apply_mask", _apply_mask)
    _replace(keras.Model, "compile", _compile)
    for method in ("fit", "train_on_batch"):
        _replace(keras.Model, method, _in_scope)
    for method in ("evaluate", "predict", "test_on_batch", "predict_on_batch"):
        _replace(keras.Model, method, _leveled)
    for method in ("save", "save_weights", "export"):
        _replace(keras.Model, method, workers.save)
    _replace(keras.callbacks.BackupAndRestore, "_save_model", workers.save_backup)
    _replace(keras.callbacks.BackupAndRestore, "on_train_end", workers.delete_backup)
    _replace(internals.file_utils, "makedirs", workers.make_folder)
    for kind in ("train", "test", "predict"):
        _replace(keras.Model, f"make_{kind}_function", functools.partial(_make_function, kind=kind))
    _replace(keras.Model, "_get_jax_state", _get_state)
    _replace(internals.iterator_class(), "_get_iterator", _get_iterator)
    _replace(internals.data_adapters, "get_data_adapter", adapters.get_data_adapter)


def replaced() -> list[tuple[Any, str]]:
    """What has been replaced: the class or module, and the name."""
    return list(_replaced)


def _replace(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Puts ``replacement(original, ...)`` where the class (or an ancestor) or module has `name`."""
    if isinstance(owner, type):
        owner = internals.defining_class(owner, name)
    if (owner, name) in _replaced:
        return
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, wrapper)
    _replaced.append((owner, name))


def _replace_new(cls: type, replacement: Callable[..., Any]) -> None:
    original = cls.__new__

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        return replacement(original, cls, *args, **kwargs)

    cls.__new__ = staticmethod(new)  # pyright: ignore[reportAttributeAccessIssue]
    _replaced.append((cls, "__new__"))


# -- creation ---------------------------------------------------------------------------------


def _new_variable(original: Callable[..., Any], cls: type, *args: Any, **kwargs: Any) -> Any:
    del args, kwargs  # __init__ gets them
    strategy = ownership.strategy_in_force() if cls is keras.Variable else None
    return original(cls) if strategy is None else variables.new(strategy)


def _new_layer(original: Callable[..., Any], cls: type, *args: Any, **kwargs: Any) -> Any:
    layer = original(cls, *args, **kwargs)
    if ownership.note_owner(layer):
        build = layer.build

        @functools.wraps(build)
        def build_in_scope(*args: Any, **kwargs: Any) -> Any:
            with ownership.scope_of(layer):
                return build(*args, **kwargs)

        layer.build = build_in_scope
    return layer


def _init_metric(original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> None:
    if ownership.strategy_in_force() is not None:
        additive.watch(metric)
    original(metric, *args, **kwargs)


def _add_weight(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    with ownership.scope_of(layer):
        return original(layer, *args, **kwargs)


def _of_optimizer(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    reference = None
    if original.__name__ == "add_variable_from_reference":
        reference = kwargs.get("reference_variable", args[0] if args else None)
    with ownership.scope_of_optimizer(optimizer, reference), variables.of_optimizer(reference):
        return original(optimizer, *args, **kwargs)


# -- training ---------------------------------------------------------------------------------


def _scale_loss(original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
    return original(optimizer, shares.weighed_loss(optimizer, loss))


def _reduce_values(
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    reduction: str | None = "sum_over_batch_size",
) -> Any:
    return shares.reduce_values(original, values, sample_weight, reduction)


def _apply_mask(
    original: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: Any
) -> Any:
    return shares.apply_mask(original, sample_weight, mask, dtype, reduction)


def _compile(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    strategy = ownership.strategy_for(model, "compile")
    if strategy is None:
        return original(model, *args, **kwargs)
    with strategy.scope():
        ownership.require_own(model, strategy)
        result = original(model, *args, **kwargs)
        ownership.take_over_compiled(model, strategy)
    return result


def _in_scope(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    strategy = ownership.strategy_for(model, original.__name__)
    if strategy is None:
        return original(model, *args, **kwargs)
    kwargs = workers.quiet(original, strategy, model, args, kwargs)
    with strategy.scope():
        ownership.require_own(model, strategy)
        if original.__name__ == "fit":
            workers.share_random_state(strategy)
        return original(model, *args, **kwargs)


def _leveled(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    @functools.wraps(original)
    def with_equal_statistics(model: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = ownership.owner_of(model)
        if strategy is not None:
            statistics.level(model, strategy)
        return original(model, *args, **kwargs)

    return _in_scope(with_equal_statistics, model, *args, **kwargs)


def _make_function(
    original: Callable[..., Any], model: Any, force: bool = False, *, kind: str
) -> Any:
    strategy = ownership.owner_of(model)
    if strategy is None:
        return original(model, force=force)
    ownership.take_over_compiled(model, strategy)  # metrics that are only now built, too
    name = f"{kind}_function"
    if getattr(model, name) is None or force:
        setattr(model, name, steps.step_function(model, strategy, kind))
    return getattr(model, name)


def _get_state(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    if ownership.owner_of(model) is None:
        return original(model, *args, **kwargs)
    asked = {"trainable": 0, "non_trainable": 0, "optimizer": 0, "metrics": 0}
    return tuple([] for kind in asked if kwargs.get(f"{kind}_variables", False))


def _get_iterator(original: Callable[..., Any], epoch: Any) -> Any:
    if ownership.strategy_in_force() is None:
        return original(epoch)
    return epoch.data_adapter.get_jax_iterator()
