"""Names that the documents place under ``tf.summary.experimental``."""

import typing

from replicax.summary.steps import get_step, set_step
from replicax.tf.equivalents import missing as _missing

__all__ = ["get_step", "set_step"]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.summary.experimental", name)
