"""Names that the documents place under ``tf.compat``."""

import typing

from replicax.tf.compat import v1
from replicax.tf.equivalents import missing as _missing

__all__ = ["v1"]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.compat", name)
