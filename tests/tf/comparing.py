"""How a result is compared with what the documents show: value, shape, dtype and nesting."""

import jax
import numpy as np

import replicax.tf as tf


def assert_tensor(value, expected, dtype):
    """`value` is an ordinary array of exactly this value, shape and dtype."""
    assert isinstance(value, tf.Tensor), f"expected an array, got {value!r}"
    assert not isinstance(value, jax.core.Tracer)
    assert value.dtype == dtype
    np.testing.assert_array_equal(np.asarray(value), np.asarray(expected))


def assert_result(strategy, result, expected, dtype):
    """`result` of ``run`` has one tensor per replica: bare for one replica, else wrapped."""
    assert len(expected) == strategy.num_replicas_in_sync
    is_wrapped = isinstance(result, tf.distribute.DistributedValues)
    assert is_wrapped == (strategy.num_replicas_in_sync > 1)
    components = strategy.experimental_local_results(result)
    assert isinstance(components, tuple)
    assert len(components) == len(expected)
    for component, one in zip(components, expected, strict=True):
        assert_tensor(component, one, dtype)


def parts_of(strategy, batch):
    """What each replica has of a global batch: contiguous parts, the last short or empty."""
    size = -(-len(batch) // strategy.num_replicas_in_sync)
    starts = range(0, size * strategy.num_replicas_in_sync, size)
    return [batch[start : start + size] for start in starts]
