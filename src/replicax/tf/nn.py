"""``tf.nn``: nothing of its own; every name says which function of ``jax.nn`` to write."""

import typing

from replicax.tf.equivalents import missing as _missing

__all__ = []


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.nn", name)
