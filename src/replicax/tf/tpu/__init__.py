"""Names that the documents place under ``tf.tpu``."""

import typing

from replicax.tf.equivalents import missing as _missing
from replicax.tf.tpu import experimental

__all__ = ["experimental"]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.tpu", name)
