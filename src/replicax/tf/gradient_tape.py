"""`tf.GradientTape` does not exist here; this class says what to write instead."""

from __future__ import annotations

import typing

__all__ = ["GradientTape"]

_MESSAGE = """\
JAX has no gradient tape: it differentiates functions. Instead of

    with tf.GradientTape() as tape:
        loss = ...
    gradients = tape.gradient(loss, variables)

write

    def loss_fn():
        return ...
    loss, gradients = replicax.value_and_grad(loss_fn, variables)
"""


class GradientTape:
    """Refuses: write ``replicax.value_and_grad(loss_fn, variables)`` instead.

    Example:
        >>> import replicax as rx
        >>> w = rx.Variable(3.0)
        >>> loss, gradients = rx.value_and_grad(lambda: w * w, [w])
        >>> gradients
        [Array(6., dtype=float32)]
    """

    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.NoReturn:
        """Raises.

        Raises:
            NotImplementedError: Always, with the lines to write instead.
        """
        raise NotImplementedError(_MESSAGE)
