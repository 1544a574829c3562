"""A ``model_fn`` under one strategy and for one mode: its variables, its optimizer and its step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import replicax as rx
from replicax.estimator.spec import EstimatorSpec, ModeKeys


class Model:
    """Calls a ``model_fn`` in replica context, and gives it the same variables each time.

    A ``model_fn`` creates its variables whenever it is called. Those of its first call are kept by
    their names, with a number behind a name that comes again, and later calls get them.

    The first call is a run of its own, and whatever it assigns is taken back. So the variables have
    their initial values after it, and can be restored before the first step.

    Args:
        model_fn: The function.
        mode: One of `ModeKeys`.
        strategy: The strategy.
        optional: What `model_fn` is called with if it has such arguments.
        batch: The first batch, which says what features and labels look like.

    Example:
        >>> import replicax as rx
        >>> def model_fn(features, labels, mode):
        ...     w = rx.Variable(2.0, name="w")
        ...     return EstimatorSpec(mode, predictions=features * w)
        >>> batch = jnp.array([1.0, 2.0])
        >>> model = Model(model_fn, ModeKeys.PREDICT, rx.get_strategy(), {}, batch)
        >>> model.step(batch), sorted(model.objects["model"])
        (Array([2., 4.], dtype=float32), ['w'])
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        mode: str,
        strategy: rx.Strategy,
        optional: dict[str, Any],
        batch: Any,
    ) -> None:
        """Creates everything."""
        self._model_fn = model_fn
        self._mode = mode
        self.strategy = strategy
        names = inspect.signature(model_fn).parameters
        offered = {"mode": mode, **optional}
        self._keywords = {name: value for name, value in offered.items() if name in names}
        self._takes_labels = "labels" in names
        self._variables: dict[str, rx.Variable] = {}
        spec = self._create(batch)
        metrics = dict(spec.eval_metric_ops or {})
        with strategy.scope():
            self.global_step = rx.Variable(
                0, False, name="global_step",
                aggregation=rx.VariableAggregation.ONLY_FIRST_REPLICA,
            )  # fmt: skip
            self._optimizer = self._made_optimizer(spec)
            self._loss = rx.metrics.Mean("loss")
        self.metrics: dict[str, Any] = {"loss": self._loss, **metrics}
        of_metrics = {id(variable) for metric in metrics.values() for variable in metric.variables}
        own = {name: v for name, v in self._variables.items() if id(v) not in of_metrics}
        self.objects: dict[str, Any] = {"model": own, "global_step": self.global_step}
        if self._optimizer is not None:
            self.objects["optimizer"] = self._optimizer
        steps = {
            ModeKeys.TRAIN: self._train,
            ModeKeys.EVAL: self._evaluate,
            ModeKeys.PREDICT: self._predict,
        }
        self._step = rx.function(steps[mode])

    def step(self, batch: Any) -> Any:
        """One step of the mode.

        Args:
            batch: Features, or a pair of features and labels.

        Returns:
            The mean loss of all examples to train, nothing to evaluate, the predictions to predict.
        """
        return self.strategy.run(self._step, args=_pair(batch))

    # -- creating --------------------------------------------------------------------------------

    def _create(self, batch: Any) -> EstimatorSpec:
        """Creates the variables, and returns what the ``model_fn`` did."""
        specs: list[EstimatorSpec] = []

        def first_call(features: Any, labels: Any) -> dict[str, jax.Array]:
            initial: dict[str, jax.Array] = {}
            specs.append(self._called(features, labels, initial))
            return initial

        try:
            initial = self.strategy.run(rx.function(first_call), args=_pair(batch))
        except Exception as error:
            error.add_note(
                f"In the first call of the model_fn of an Estimator, in replica context, for "
                f"{self._mode!r}. Variables and metrics are created in there; the optimizer is "
                "not: train_op is a function that makes it."
            )
            raise
        with self.strategy.scope():
            for name, value in initial.items():
                whole = self.strategy.experimental_local_results(value)[0]  # equal on all of them
                self._variables[name].assign(whole)
        return specs[-1]

    def _made_optimizer(self, spec: EstimatorSpec) -> rx.Optimizer | None:
        if self._mode != ModeKeys.TRAIN or spec.train_op is None:
            return None
        optimizer = spec.train_op()
        if not isinstance(optimizer, rx.Optimizer):
            raise TypeError(
                f"train_op returned {optimizer!r}; expected a replicax.Optimizer, such as "
                "replicax.optimizers.SGD(0.1)."
            )
        if not self._trainable:
            raise ValueError(
                f"the model_fn created no trainable variable: {sorted(self._variables)}. Create "
                "replicax.Variable in it; variables that were created elsewhere are not trained."
            )
        optimizer.build(self._trainable)
        return optimizer

    @property
    def _trainable(self) -> list[rx.Variable]:
        return [variable for variable in self._variables.values() if variable.trainable]

    # -- in a replica ----------------------------------------------------------------------------

    def _train(self, features: Any, labels: Any) -> jax.Array:
        count = _rows_of(features)
        context = rx.get_replica_context()
        total = context.all_reduce("SUM", jnp.float32(count))

        def loss_fn() -> jax.Array:
            loss = jnp.asarray(self._called(features, labels).loss)
            # The mean of no examples is not a number, also when it is multiplied by 0.
            return loss * (count / total) if count else jnp.zeros_like(loss)

        variables = self._trainable
        loss, gradients = rx.value_and_grad(loss_fn, variables)
        assert self._optimizer is not None
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.global_step.assign_add(1)
        return context.all_reduce("SUM", loss)

    def _evaluate(self, features: Any, labels: Any) -> None:
        loss = self._called(features, labels).loss
        if count := _rows_of(features):
            self._loss.update_state(loss, sample_weight=count)

    def _predict(self, features: Any, labels: Any) -> Any:
        return self._called(features, labels).predictions

    def _called(
        self, features: Any, labels: Any, initial: dict[str, jax.Array] | None = None
    ) -> EstimatorSpec:
        """Calls the ``model_fn``; the first call puts into `initial` what variables begin with."""
        used: set[str] = set()

        def creator(next_creator: Callable[..., Any], **options: Any) -> Any:
            name = _unused(options.get("name") or "Variable", used)
            used.add(name)
            if initial is not None:
                if name not in self._variables:
                    self._variables[name] = next_creator(**options)
                # Replicas meet to create a variable, so this is its value over all of them.
                initial[name] = self._variables[name].read_value()
            elif name not in self._variables:
                raise ValueError(
                    f"the model_fn created a variable {name!r}, and did not in its first call: "
                    f"{sorted(self._variables)}. Create the same variables in each call."
                )
            return self._variables[name]

        if self._mode == ModeKeys.PREDICT:
            labels = None
        arguments = (features, labels) if self._takes_labels else (features,)
        with rx.variable_creator_scope(creator):
            spec = self._model_fn(*arguments, **self._keywords)
        if not isinstance(spec, EstimatorSpec) or spec.mode != self._mode:
            raise TypeError(
                f"the model_fn returned {spec!r} for the mode {self._mode!r}; expected an "
                "EstimatorSpec with that mode."
            )
        return spec


def _unused(name: str, used: set[str]) -> str:
    """The name, with the first number behind it that makes it new."""
    if name not in used:
        return name
    number = 1
    while f"{name}_{number}" in used:
        number += 1
    return f"{name}_{number}"


def _pair(batch: Any) -> tuple[Any, Any]:
    return tuple(batch) if isinstance(batch, (tuple, list)) and len(batch) == 2 else (batch, None)


def _rows_of(features: Any) -> int:
    """How many examples a replica has."""
    leaves = jax.tree.leaves(features)
    if not leaves or not jnp.ndim(leaves[0]):
        raise ValueError(
            f"the features are {features!r}; expected arrays with one row for each example. Let "
            "input_fn return a dataset of batches: dataset.batch(32)."
        )
    return jnp.shape(leaves[0])[0]
