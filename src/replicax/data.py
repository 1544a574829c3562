"""Datasets with the documented names: ``from replicax.data import Dataset``."""

from replicax.core.enums import AutoShardPolicy
from replicax.input.pipeline.dataset import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Dataset,
)
from replicax.input.pipeline.files import TextLineDataset, TFRecordDataset
from replicax.input.pipeline.options import DistributeOptions, Options

__all__ = [
    "AUTOTUNE",
    "AutoShardPolicy",
    "Dataset",
    "DistributeOptions",
    "INFINITE_CARDINALITY",
    "Options",
    "TFRecordDataset",
    "TextLineDataset",
    "UNKNOWN_CARDINALITY",
]
