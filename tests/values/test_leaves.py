"""Each leaf of a nest is of one kind, also those that are of several classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.values.leaves import Leaf, leaf_kind


class Celsius(float):
    pass


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [
        (jnp.zeros(2), Leaf.JAX_ARRAY),
        (jax.random.key(0), Leaf.JAX_ARRAY),
        (np.zeros(2), Leaf.HOST_ARRAY),
        (np.float64(1.0), Leaf.HOST_ARRAY),  # which is a Python float, too
        (np.array(["text"]), Leaf.HOST_ARRAY),
        *((number, Leaf.NUMBER) for number in (True, 1, 1.0, 1j, Celsius(1.0))),
        *((thing, Leaf.OTHER) for thing in (None, "text", b"bytes", object(), len)),
    ],
)
def test_a_value_of_one_device_or_none(leaf, kind):
    assert leaf_kind(leaf) is kind


def test_values_of_replicas_and_variables():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = rx.Variable(1.0)
    total = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
    assert leaf_kind(strategy.distribute_batch([1, 2])) is Leaf.PER_REPLICA
    assert leaf_kind(total) is Leaf.MIRRORED
    assert leaf_kind(v) is Leaf.VARIABLE  # which is a distributed value, too
    assert leaf_kind(strategy.experimental_local_results(v)[0]) is Leaf.VARIABLE
    assert leaf_kind(rx.Variable(1.0)) is Leaf.VARIABLE


def test_values_of_a_trace():
    kinds = []
    jax.make_jaxpr(lambda x: kinds.append(leaf_kind(x)))(1.0)
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

    def merge_fn(strategy, own, total):
        kinds.extend([leaf_kind(own), leaf_kind(total)])

    @rx.function
    def step(x):
        context = rx.get_replica_context()
        context.merge_call(merge_fn, args=(x, context.all_reduce("SUM", x)))

    strategy.run(step, args=(strategy.distribute_batch([1.0, 2.0]),))
    assert kinds == [Leaf.TRACER, Leaf.PER_REPLICA, Leaf.MIRRORED]
