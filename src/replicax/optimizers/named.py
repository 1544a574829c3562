"""Optimizers by the documented names and arguments, for programs that do not speak Optax.

Their learning rate is a variable, so that it can be read and changed between
steps without compiling anything anew; it may also be a schedule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.optimizers.optimizer import Optimizer, import_optax
from replicax.variables.creation import layout_like
from replicax.variables.variable import Variable

LearningRate = float | Callable[[Any], Any]
Rate = Callable[[], Any]
"""Gives the learning rate of the update that is being made."""

# Documented arguments that have no meaning here unless they are set, and what to write then.
_INSTEAD = {
    "amsgrad": "Use rx.Optimizer(optax.amsgrad(learning_rate)).",
    "decay": "Pass a schedule: learning_rate=lambda step: rate / (1 + decay * step).",
    "ema_momentum": "Keep averages yourself, with optax.incremental_update.",
    "ema_overwrite_frequency": "Keep averages yourself, with optax.incremental_update.",
    "jit_compile": "Leave it out: what replicax.function compiles includes the update.",
    "loss_scale_factor": "Multiply the loss by it, and divide the gradients by it.",
    "lr": "Write learning_rate.",
    "use_ema": "Keep averages yourself, with optax.incremental_update.",
}


class _WithLearningRate(Optimizer):
    """An optimizer that multiplies by a learning rate.

    Args:
        learning_rate: A number, or a schedule of the number of updates.
        steps: The transformations before that.
        after: The transformations after that.
        weight_decay: What part of a variable is taken off in each update, times the
            learning rate.
        clipnorm: The largest norm of the gradient of one variable; larger ones are scaled down.
        clipvalue: The largest absolute value of an element of a gradient.
        global_clipnorm: The largest norm of all gradients together: `clip_global_norm`.
        gradient_accumulation_steps: The documented name of `accumulate_steps`.
        name: As for `Optimizer`.
        options: As for `Optimizer`.
    """

    def __init__(
        self,
        learning_rate: LearningRate,
        *steps: Any,
        after: Sequence[Any] = (),
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str,
        **options: Any,
    ) -> None:
        """Puts the learning rate behind `steps`."""
        _refuse(type(self).__name__, options)
        _check_clips(clipnorm=clipnorm, clipvalue=clipvalue, global_clipnorm=global_clipnorm)
        optax = import_optax()
        before = list(steps)
        if clipnorm is not None:
            before.insert(0, optax.stateless_with_tree_map(lambda g, _: _shortened(g, clipnorm)))
        if clipvalue is not None:
            before.insert(0, optax.clip(clipvalue))
        if global_clipnorm is not None:
            options["clip_global_norm"] = global_clipnorm
        if gradient_accumulation_steps is not None:
            options["accumulate_steps"] = gradient_accumulation_steps
        self._with_rate = functools.partial(_chained, before, list(after), weight_decay)
        super().__init__(self._with_rate(self._rate), name=name, **options)
        self._learning_rate: Any = learning_rate
        if not callable(learning_rate):
            extended = self._strategy.extended
            with extended.colocate_vars_with(extended.non_slot_devices([])):
                self._learning_rate = Variable(
                    np.float32(learning_rate),
                    False,
                    name=f"{name}/learning_rate",
                    **layout_like(None, (), self._strategy),
                )

    def _rate(self) -> jax.Array:
        """The learning rate of the update that is being made."""
        rate = self._learning_rate
        return rate.read_value() if isinstance(rate, Variable) else rate(self._num_updates())

    def _elsewhere(self) -> tuple[Callable[[Sequence[Any]], Any], list[Variable]]:
        """As `Optimizer._elsewhere`: the rate is not at hand there."""
        rate = self._learning_rate
        if isinstance(rate, Variable):
            return functools.partial(_given_rate, self._with_rate), [rate]
        return functools.partial(_given_step, self._with_rate, rate), [self.iterations]

    def _num_updates(self) -> Any:
        """How many updates there were before the one that is being made."""
        return self.iterations.read_value()

    @property
    def learning_rate(self) -> Any:
        """The variable that holds the learning rate, or the schedule."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if not isinstance(self._learning_rate, Variable):
            raise AttributeError(
                f"the learning rate of optimizer {self.name!r} is the schedule "
                f"{self._learning_rate!r}, which cannot be replaced by {value!r}. Create the "
                "optimizer with a number to change it later."
            )
        self._learning_rate.assign(value)

    @property
    def variables(self) -> list[Variable]:
        """Every variable of the optimizer's own, for a checkpoint."""
        own = [self._learning_rate] if isinstance(self._learning_rate, Variable) else []
        return [*super().variables, *own]


def _chained(before: list[Any], after: list[Any], weight_decay: Any, rate: Rate) -> Any:
    """The transformation with a learning rate, which is asked for in each update."""
    optax = import_optax()

    def scaled(updates: Any, _: Any) -> Any:
        now = jnp.asarray(rate())
        return jax.tree.map(lambda update: -now.astype(update.dtype) * update, updates)

    def decayed(updates: Any, values: Any) -> Any:
        share = rate() * weight_decay
        return jax.tree.map(lambda u, v: u - jnp.asarray(share, u.dtype) * v, updates, values)

    rest = [optax.stateless(scaled), *after]
    if weight_decay:  # behind `after`, because momentum is of gradients only
        rest.append(optax.stateless(decayed))
    return optax.chain(*before, *rest)


def _given_rate(with_rate: Callable[[Rate], Any], values: Sequence[Any]) -> Any:
    return with_rate(lambda: values[0])


def _given_step(with_rate: Callable[[Rate], Any], schedule: Any, values: Sequence[Any]) -> Any:
    return with_rate(lambda: schedule(values[0]))


class SGD(_WithLearningRate):
    """Stochastic gradient descent, with momentum if asked for.

    Args:
        learning_rate: A number, or a schedule.
        momentum: The decay of the velocity; 0 for none.
        nesterov: Whether to look ahead along the velocity.
        name: In front of the names of the state.
        options: The documented ones (`weight_decay`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `gradient_accumulation_steps`), and those of `Optimizer`.

    Example:
        >>> import replicax as rx
        >>> w = rx.Variable(1.0)
        >>> optimizer = SGD(0.5)
        >>> optimizer.apply_gradients([(1.0, w)])
        >>> optimizer.learning_rate = 0.25
        >>> optimizer.apply_gradients([(1.0, w)])
        >>> w.numpy()
        array(0.25, dtype=float32)
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        **options: Any,
    ) -> None:
        _check_momentum(momentum)
        steps = [import_optax().trace(decay=momentum, nesterov=nesterov)] if momentum else []
        super().__init__(learning_rate, *steps, name=name, **options)


class Adam(_WithLearningRate):
    """Adam: steps scaled by running estimates of the first two moments.

    Args:
        learning_rate: A number, or a schedule.
        beta_1: The decay of the first moment.
        beta_2: The decay of the second moment.
        epsilon: Added to the root of the (corrected) second moment.
        name: In front of the names of the state.
        options: The documented ones (`weight_decay`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `gradient_accumulation_steps`), and those of `Optimizer`.

    Example:
        >>> import replicax as rx
        >>> w = rx.Variable(1.0)
        >>> Adam(0.5).apply_gradients([(3.0, w)])
        >>> round(float(w), 3)
        0.5
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Adam",
        **options: Any,
    ) -> None:
        moments = import_optax().scale_by_adam(b1=beta_1, b2=beta_2, eps=epsilon)
        super().__init__(learning_rate, moments, name=name, **options)


class AdamW(_WithLearningRate):
    """Adam with decoupled weight decay.

    Args:
        learning_rate: A number, or a schedule.
        weight_decay: What part of a variable is taken off in each step, times the
            learning rate.
        beta_1: The decay of the first moment.
        beta_2: The decay of the second moment.
        epsilon: Added to the root of the (corrected) second moment.
        name: In front of the names of the state.
        options: The documented ones (`weight_decay`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `gradient_accumulation_steps`), and those of `Optimizer`.

    Example:
        >>> import replicax as rx
        >>> w = rx.Variable(1.0)
        >>> AdamW(0.5, weight_decay=0.1).apply_gradients([(3.0, w)])
        >>> round(float(w), 3)
        0.45
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "AdamW",
        **options: Any,
    ) -> None:
        moments = import_optax().scale_by_adam(b1=beta_1, b2=beta_2, eps=epsilon)
        super().__init__(learning_rate, moments, weight_decay=weight_decay, name=name, **options)


class Nadam(_WithLearningRate):
    """Adam with Nesterov momentum, as ``optax.nadam`` has it.

    The decay of the first moment is constant; Keras lets it grow with the steps.

    Args:
        learning_rate: A number, or a schedule.
        beta_1: The decay of the first moment.
        beta_2: The decay of the second moment.
        epsilon: Added to the root of the (corrected) second moment.
        name: In front of the names of the state.
        options: The documented ones (`weight_decay`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `gradient_accumulation_steps`), and those of `Optimizer`.

    Example:
        >>> import replicax as rx
        >>> w = rx.Variable(1.0)
        >>> Nadam(0.5).apply_gradients([(3.0, w)])
        >>> round(float(w), 3)
        0.263
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Nadam",
        **options: Any,
    ) -> None:
        moments = import_optax().scale_by_adam(b1=beta_1, b2=beta_2, eps=epsilon, nesterov=True)
        super().__init__(learning_rate, moments, name=name, **options)


class RMSprop(_WithLearningRate):
    """Steps scaled by a running mean of the squares of gradients.

    Args:
        learning_rate: A number, or a schedule.
        rho: The decay of the running mean.
        momentum: The decay of the velocity; 0 for none.
        epsilon: Added to the running mean.
        centered: Whether the mean gradient is taken off, so that the variance scales.
        name: In front of the names of the state.
        options: The documented ones (`weight_decay`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `gradient_accumulation_steps`), and those of `Optimizer`.

    Example:
        >>> import replicax as rx
        >>> w = rx.Variable(1.0)
        >>> RMSprop(0.5, rho=0.75).apply_gradients([(3.0, w)])
        >>> round(float(w), 3)
        0.0
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        name: str = "RMSprop",
        **options: Any,
    ) -> None:
        _check_momentum(momentum)
        optax = import_optax()
        scale = optax.scale_by_stddev if centered else optax.scale_by_rms
        after = [optax.trace(decay=momentum)] if momentum else []
        super().__init__(
            learning_rate, scale(decay=rho, eps=epsilon), after=after, name=name, **options
        )


class Adagrad(_WithLearningRate):
    """Steps scaled by the sum of the squares of all gradients so far.

    Args:
        learning_rate: A number, or a schedule.
        initial_accumulator_value: What the sum starts from.
        epsilon: Added to the sum.
        name: In front of the names of the state.
        options: The documented ones (`weight_decay`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `gradient_accumulation_steps`), and those of `Optimizer`.

    Example:
        >>> import replicax as rx
        >>> w = rx.Variable(1.0)
        >>> Adagrad(0.5, initial_accumulator_value=0.0).apply_gradients([(3.0, w)])
        >>> round(float(w), 3)
        0.5
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str = "Adagrad",
        **options: Any,
    ) -> None:
        scale = import_optax().scale_by_rss(initial_accumulator_value, eps=epsilon)
        super().__init__(learning_rate, scale, name=name, **options)


class Adafactor(_WithLearningRate):
    """Steps scaled by second moments that are kept as a row and a column for each matrix.

    Args:
        learning_rate: A number, or a schedule; times the root mean square of the variable.
        beta_2_decay: The decay of the second moment is ``1 - step ** beta_2_decay``.
        epsilon_1: Added to the squares of gradients.
        epsilon_2: The smallest root mean square of a variable to multiply by.
        clip_threshold: The largest root mean square of a scaled gradient.
        relative_step: Whether the learning rate is ``1 / sqrt(step)`` once that is smaller.
        name: In front of the names of the state.
        options: The documented ones (`weight_decay`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `gradient_accumulation_steps`), and those of `Optimizer`.

    Example:
        >>> import replicax as rx
        >>> w = rx.Variable(1.0)
        >>> Adafactor(0.5).apply_gradients([(3.0, w)])
        >>> round(float(w), 3)
        0.5
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        name: str = "Adafactor",
        **options: Any,
    ) -> None:
        optax = import_optax()
        steps = (
            optax.scale_by_factored_rms(
                decay_rate=-beta_2_decay, min_dim_size_to_factor=1, epsilon=epsilon_1
            ),
            optax.clip_by_block_rms(clip_threshold),
            optax.scale_by_param_block_rms(epsilon_2),
        )
        self._is_relative = relative_step
        super().__init__(learning_rate, *steps, name=name, **options)

    def _rate(self) -> jax.Array:
        rate = super()._rate()
        if not self._is_relative:
            return rate
        return jnp.minimum(rate, lax.rsqrt((self._num_updates() + 1).astype(jnp.float32)))


class Lion(_WithLearningRate):
    """Steps of one size, in the direction of the sign of an interpolated momentum.

    Args:
        learning_rate: A number, or a schedule.
        beta_1: How much the momentum counts beside the gradient.
        beta_2: The decay of the momentum.
        name: In front of the names of the state.
        options: The documented ones (`weight_decay`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `gradient_accumulation_steps`), and those of `Optimizer`.

    Example:
        >>> import replicax as rx
        >>> w = rx.Variable(1.0)
        >>> Lion(0.25).apply_gradients([(3.0, w)])
        >>> w.numpy()
        array(0.75, dtype=float32)
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        name: str = "Lion",
        **options: Any,
    ) -> None:
        sign = import_optax().scale_by_lion(b1=beta_1, b2=beta_2)
        super().__init__(learning_rate, sign, name=name, **options)


def _refuse(name: str, options: dict[str, Any]) -> None:
    """Takes documented arguments that are not set out of `options`.

    Raises:
        TypeError: If one is set.
    """
    for option in _INSTEAD.keys() & options.keys():
        value = options.pop(option)
        is_set = value is not None and value is not False
        if is_set and not (option == "ema_momentum" and not options.get("use_ema")):
            raise TypeError(f"{name} has no {option}={value!r}. {_INSTEAD[option]}")


def _check_clips(**clips: float | None) -> None:
    """Raises unless at most one is given, and positive."""
    given = {name: value for name, value in clips.items() if value is not None}
    if len(given) > 1:
        raise ValueError(f"got {given}: pass at most one of {', '.join(clips)}.")
    for name, value in given.items():
        if not value > 0:
            raise ValueError(f"{name} is {value!r}; expected a positive number, or None.")


def _check_momentum(momentum: float) -> None:
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum is {momentum!r}; expected a number from 0 to 1.")


def _shortened(gradient: jax.Array, largest: float) -> jax.Array:
    """The gradient, scaled down to norm `largest` if it is longer."""
    squares = jnp.square(gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32)))
    norm = jnp.sqrt(jnp.sum(squares))
    return (gradient * (largest / jnp.maximum(norm, largest))).astype(gradient.dtype)
