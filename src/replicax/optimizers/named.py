"""Optimizers by the documented names, for programs that do not speak Optax.

Their learning rate is a variable, so that it can be read and changed between
steps without compiling anything anew; it may also be a schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicax.optimizers.optimizer import Optimizer, import_optax
from replicax.variables.variable import Variable

LearningRate = float | Callable[[Any], Any]


class _WithLearningRate(Optimizer):
    """An optimizer whose last step multiplies by a learning rate.

    Args:
        learning_rate: A number, or a schedule of the number of updates.
        steps: The transformations before that.
        name: As for `Optimizer`.
        options: As for `Optimizer`.
    """

    def __init__(self, learning_rate: LearningRate, *steps: Any, name: str, **options: Any) -> None:
        """Puts the learning rate behind `steps`."""
        optax = import_optax()
        self._learning_rate: Any = learning_rate
        if callable(learning_rate) and not isinstance(learning_rate, Variable):
            last = optax.scale_by_learning_rate(learning_rate)
        else:
            last = optax.stateless(lambda updates, _: self._scaled(updates))
        super().__init__(optax.chain(*steps, last), name=name, **options)
        if not callable(learning_rate):
            self._learning_rate = Variable(
                np.float32(learning_rate), False, name=f"{name}/learning_rate"
            )

    def _scaled(self, updates: Any) -> Any:
        rate = self._learning_rate.read_value()
        return jax.tree.map(lambda update: -rate.astype(update.dtype) * update, updates)

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


class SGD(_WithLearningRate):
    """Stochastic gradient descent, with momentum if asked for.

    Args:
        learning_rate: A number, or a schedule.
        momentum: The decay of the velocity; 0 for none.
        nesterov: Whether to look ahead along the velocity.
        name: In front of the names of the state.
        options: The options of `Optimizer`.

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
        """Plain, or with momentum."""
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum is {momentum!r}; expected a number from 0 to 1.")
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
        options: The options of `Optimizer`.

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
        """With the documented defaults."""
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
        options: The options of `Optimizer`.
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
        """With the documented defaults."""
        optax = import_optax()
        moments = optax.scale_by_adam(b1=beta_1, b2=beta_2, eps=epsilon)
        decay = optax.add_decayed_weights(weight_decay)
        super().__init__(learning_rate, moments, decay, name=name, **options)
