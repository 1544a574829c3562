"""Makes events of values on the host, by tensorboardX; runs on the thread of a writer.

Importing this module imports nothing of tensorboardX, which is an extra.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

Proto = Any  # of tensorboardX, which has no types


class EventFile:
    """One file of events.

    Args:
        folder: Where it is.
        suffix: The end of its name.
    """

    def __init__(self, folder: pathlib.Path, suffix: str) -> None:
        """Creates the folder and the file."""
        from tensorboardX.event_file_writer import EventsWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"), suffix)

    def write(self, proto: Proto, step: int, seconds: float) -> None:
        """Adds a summary.

        Args:
            proto: What `PROTOS` made.
            step: Its step.
            seconds: When it was recorded, in seconds since 1970.
        """
        from tensorboardX.proto import event_pb2

        event: Any = event_pb2  # made by a compiler without types
        self._writer.write_event(event.Event(wall_time=seconds, step=step, summary=proto))

    def flush(self) -> None:
        """Returns when all is in the file."""
        self._writer.flush()

    def close(self) -> None:
        """Flushes, and closes the file."""
        self._writer.close()


def _named(proto: Proto, tag: str) -> Proto:
    """The summary with exactly this tag: tensorboardX changes spaces and other characters."""
    proto.value[0].tag = tag
    return proto


def _scalar(tag: str, value: np.ndarray) -> Proto:
    from tensorboardX import summary

    return _named(summary.scalar(tag, float(value)), tag)


def _histogram(tag: str, values: np.ndarray, *, buckets: int) -> Proto:
    from tensorboardX import summary

    finite = values[np.isfinite(values)].astype(np.float64)
    return _named(summary.histogram(tag, finite if finite.size else np.zeros(1), buckets), tag)


def _image(tag: str, images: np.ndarray, *, max_outputs: int) -> Proto:
    from tensorboardX import summary

    tags = [tag] if len(images) == 1 else [f"{tag}/{number}" for number in range(len(images))]
    protos = [
        _named(summary.image(name, image, dataformats="HWC"), name)
        for name, image in list(zip(tags, images, strict=True))[:max_outputs]
    ]
    for proto in protos[1:]:
        protos[0].value.extend(proto.value)
    return protos[0]


def _text(tag: str, text: np.ndarray) -> Proto:
    from tensorboardX import summary

    return summary.text(tag, str(text))


PROTOS: dict[str, Callable[..., Proto]] = {
    "scalar": _scalar,
    "histogram": _histogram,
    "image": _image,
    "text": _text,
}
