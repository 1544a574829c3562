"""Names that the documents place under ``tf.data``: datasets on the host, over Grain."""

from replicax.input.pipeline.dataset import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Dataset,
)
from replicax.input.pipeline.files import TextLineDataset, TFRecordDataset
from replicax.input.pipeline.options import Options
from replicax.tf.data import experimental

__all__ = [
    "AUTOTUNE",
    "Dataset",
    "INFINITE_CARDINALITY",
    "Options",
    "TFRecordDataset",
    "TextLineDataset",
    "UNKNOWN_CARDINALITY",
    "experimental",
]
