"""Names that the documents place under ``tf.data``: datasets on the host, over Grain."""

import typing

from replicax.input.pipeline.dataset import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Dataset,
)
from replicax.input.pipeline.files import TextLineDataset, TFRecordDataset
from replicax.input.pipeline.options import Options
from replicax.tf.data import experimental
from replicax.tf.equivalents import missing as _missing

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


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.data", name)
