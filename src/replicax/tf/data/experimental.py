"""Names that the documents place under ``tf.data.experimental``."""

from replicax.core.enums import AutoShardPolicy
from replicax.input.pipeline.dataset import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from replicax.input.pipeline.options import DistributeOptions

__all__ = [
    "AUTOTUNE",
    "AutoShardPolicy",
    "DistributeOptions",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
]
