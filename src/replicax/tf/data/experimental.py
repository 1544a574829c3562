"""Names that the documents place under ``tf.data.experimental``."""

import typing

from replicax.core.enums import AutoShardPolicy
from replicax.input.pipeline.dataset import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from replicax.input.pipeline.options import DistributeOptions
from replicax.tf.equivalents import missing as _missing

__all__ = [
    "AUTOTUNE",
    "AutoShardPolicy",
    "DistributeOptions",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.data.experimental", name)
