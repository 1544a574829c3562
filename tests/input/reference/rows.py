"""A row of what was observed of TensorFlow, and how our values are compared with it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import replicax as rx
import replicax.tf as tf

REPLICAS = (2, 3)
"""How many replicas the observations were made with."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One pipeline of global batches, and what each replica gets of it.

    Attributes:
        name: The name of the observation.
        build: Makes the pipeline.
        steps: By number of replicas: for each step, a nest of lists for each replica. The
            same in both where the row is an error or a permutation.
        dtype: The dtype of the components before JAX narrows it, or a nest of dtypes.
        reason: Why the row is not the bare observation, if it is not.
        after_per_replica: Whether the strategy distributed by PER_REPLICA before.
    """

    name: str
    build: Callable[[], Any]
    steps: dict[int, list[Any]]
    dtype: Any = "int64"
    reason: str = ""
    after_per_replica: bool = False


@dataclasses.dataclass(frozen=True)
class ErrorRow:
    """A pipeline that TensorFlow splits or refuses, and that we refuse.

    Attributes:
        name: The name of the observation.
        build: Makes the pipeline, or fails to.
        error: The type of the error.
        text: What the error says, a pattern.
        reason: What was observed, and why ours is different.
    """

    name: str
    build: Callable[[], Any]
    error: type[Exception]
    text: str
    reason: str


def ids(rows):
    return [row.name for row in rows]


def mirrored(count):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def is_list(node):
    return isinstance(node, (list, np.ndarray))


def expected_arrays(component, dtype):
    """The nest of lists of one replica as arrays, of the dtype that JAX makes of `dtype`."""

    def array(values, dtype):
        dtype = np.dtype(dtype)
        if dtype.kind == "O":
            return np.asarray(values, object).reshape(-1)
        return np.asarray(values, jax.dtypes.canonicalize_dtype(dtype))

    return jax.tree_util.tree_map(array, component, dtype, is_leaf=is_list)


def joined(step):
    """What one replica gets of a step: the parts of all, one after the other."""

    def concatenated(*parts):
        parts = [np.asarray(part) for part in parts]
        return np.concatenate([part for part in parts if len(part)] or parts[:1])

    return jax.tree_util.tree_map(concatenated, *step, is_leaf=is_list)


def assert_same(got, expected):
    """Nesting, values, shapes and dtypes are the same."""
    got_leaves, got_structure = jax.tree_util.tree_flatten(got)
    leaves, structure = jax.tree_util.tree_flatten(expected)
    assert got_structure == structure
    for leaf, want in zip(got_leaves, leaves, strict=True):
        assert (leaf.shape, leaf.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(np.asarray(leaf), want)


def assert_steps(strategy, values, steps, dtype="int64"):
    """Every step of `values` is as the row says, for each replica of `strategy`."""
    values = list(values)
    assert len(values) == len(steps)
    for value, step in zip(values, steps, strict=True):
        parts = strategy.experimental_local_results(value)
        assert len(parts) == len(step) == strategy.num_replicas_in_sync
        for got, want in zip(parts, step, strict=True):
            assert_same(got, expected_arrays(want, dtype))


def assert_bare_steps(values, steps, dtype="int64"):
    """The values of one replica are the bare batches that the steps of several make up."""
    values = list(values)
    assert len(values) == len(steps)
    for value, step in zip(values, steps, strict=True):
        leaves = jax.tree_util.tree_leaves(value)
        assert not any(isinstance(leaf, rx.DistributedValues) for leaf in leaves)
        assert_same(value, expected_arrays(joined(step), dtype))


def lists(strategy, values):
    """The components of each step, as lists."""
    return [
        [np.asarray(part).tolist() for part in strategy.experimental_local_results(value)]
        for value in values
    ]
