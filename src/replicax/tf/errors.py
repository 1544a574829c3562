"""Names that the documents place under ``tf.errors``: the errors of Replicax."""

import typing

from replicax.core.errors import OutOfRangeError
from replicax.tf.equivalents import missing as _missing

__all__ = ["OutOfRangeError"]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.errors", name)
