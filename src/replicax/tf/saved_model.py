"""Names that the documents place under ``tf.saved_model``."""

import typing

from replicax.saved_model.loading import load
from replicax.saved_model.saving import save
from replicax.tf.equivalents import missing as _missing

__all__ = ["load", "save"]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.saved_model", name)
