"""Reads event files, as TensorBoard does."""

import pathlib
import struct

import numpy as np
from tensorboardX.proto.event_pb2 import Event


def events(folder):
    """All events of all files in a folder."""
    for path in sorted(pathlib.Path(folder).glob("*tfevents*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            yield Event.FromString(data[at + 12 : at + 12 + length])
            at += length + 16


def scalars(folder, tag):
    """Step and value of each scalar with this tag."""
    return [
        (event.step, value.simple_value)
        for event in events(folder)
        for value in event.summary.value
        if value.tag == tag
    ]


def values(folder, tag):
    """Step and value of whatever has this tag."""
    return [
        (event.step, value)
        for event in events(folder)
        for value in event.summary.value
        if value.tag.split("/")[0] == tag
    ]


def histogram(value):
    """Limits and counts."""
    return np.array(value.histo.bucket_limit), np.array(value.histo.bucket)
