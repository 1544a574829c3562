"""``tf.io`` has no names here: what reads files on the host is Python's own."""

import typing

from replicax.tf.equivalents import missing as _missing

__all__: list[str] = []


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.io", name)
