"""Names that the documents place under ``tf.summary``."""

import typing

from replicax.summary.recording import histogram, image, scalar, text
from replicax.summary.writer import (
    SummaryWriter,
    create_file_writer,
    create_noop_writer,
    flush,
    record_if,
    should_record_summaries,
)
from replicax.tf.equivalents import missing as _missing
from replicax.tf.summary import experimental

__all__ = [
    "SummaryWriter",
    "create_file_writer",
    "create_noop_writer",
    "experimental",
    "flush",
    "histogram",
    "image",
    "record_if",
    "scalar",
    "should_record_summaries",
    "text",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.summary", name)
