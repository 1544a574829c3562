"""Names that the documents place under ``tf.nn``; the rest is in ``jax.nn``."""

import typing

from replicax.losses import compute_average_loss, scale_regularization_loss
from replicax.tf.equivalents import missing as _missing

__all__ = ["compute_average_loss", "scale_regularization_loss"]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.nn", name)
