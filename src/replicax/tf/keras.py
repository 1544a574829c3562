"""``tf.keras`` is Keras itself, on JAX; it is imported when it is first used.

Models made in a strategy's scope are distributed by `integrations.keras`. Our own metrics and
optimizers are ``rx.metrics`` and ``rx.optimizers``.

>>> import replicax.tf as tf
>>> tf.keras.losses.MeanSquaredError().name
'mean_squared_error'
"""

import os
import types
import typing

from replicax.core.extras import require_extra as _require_extra
from replicax.tf.equivalents import missing as _missing

__all__: list[str] = []  # those of Keras


def _keras() -> types.ModuleType:
    _require_extra("keras", user="tf.keras", extra="keras")
    os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it when it is imported
    import keras

    return keras


def __getattr__(name: str) -> typing.Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    keras = _keras()
    if not hasattr(keras, name):
        raise _missing("tf.keras", name)
    return getattr(keras, name)


def __dir__() -> list[str]:
    return dir(_keras())
