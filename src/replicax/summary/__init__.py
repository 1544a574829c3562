"""Summaries: what happens in a run, written to files that TensorBoard shows.

Its own facade: ``rx.summary.scalar("loss", loss, step)``.
"""

from replicax.summary.recording import SummaryError, histogram, image, scalar, text
from replicax.summary.steps import get_step, set_step
from replicax.summary.writer import (
    SummaryWriter,
    create_file_writer,
    create_noop_writer,
    flush,
    record_if,
    should_record_summaries,
)

__all__ = [
    "SummaryError",
    "SummaryWriter",
    "create_file_writer",
    "create_noop_writer",
    "flush",
    "get_step",
    "histogram",
    "image",
    "record_if",
    "scalar",
    "set_step",
    "should_record_summaries",
    "text",
]
