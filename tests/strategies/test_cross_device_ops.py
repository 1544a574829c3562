"""An object of the user's that combines values is asked wherever a strategy combines them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import ContextError, DistributedValueError, ReductionError


class Adding(rx.CrossDeviceOps):
    """Adds components in Python, and notes each call."""

    def __init__(self):
        self.calls = []

    def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
        values = per_replica_value.values
        self.calls.append("traced" if isinstance(values[0], jax.core.Tracer) else "concrete")
        total = sum(values[1:], values[0])
        if reduce_op is rx.ReduceOp.MEAN:
            total = total / len(values)
        return self.broadcast(total, destinations)


class Together(Adding):
    """Does many at once."""

    def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
        self.calls.append(len(value_destination_pairs))
        return [
            self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]


def of(ops, count=3):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(count)], cross_device_ops=ops)


def numbers(strategy):
    """[0 1], [1 2], [2 3] on three replicas."""
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.arange(2.0) + ctx.replica_id_in_sync_group
    )


def all_reduced(strategy):
    x = numbers(strategy)
    step = lambda x: rx.get_replica_context().all_reduce("SUM", {"a": x, "b": x * 2})  # noqa: E731
    return [strategy.run(fn, args=(x,)) for fn in (step, rx.function(step))]


WAYS = {
    "reduce": lambda s: (s.reduce("SUM", numbers(s), axis=None), [3.0, 6.0]),
    "reduce of a mean": lambda s: (s.reduce("MEAN", numbers(s), axis=None), [1.0, 2.0]),
    "reduce over a dim": lambda s: (s.reduce("MEAN", numbers(s), axis=0), 1.5),
    "reduce_to one device": lambda s: (s.extended.reduce_to("SUM", numbers(s), "CPU:1"), [3, 6]),
    "reduce_to all": lambda s: (s.extended.reduce_to("SUM", numbers(s), numbers(s)), [3, 6]),
    "batch_reduce_to": lambda s: (
        np.stack(s.extended.batch_reduce_to("MEAN", [(numbers(s), "CPU:0")] * 2)),
        [[1, 2], [1, 2]],
    ),
    "all_reduce eagerly": lambda s: (all_reduced(s)[0]["b"], [6.0, 12.0]),
    "all_reduce compiled": lambda s: (all_reduced(s)[1]["b"], [6.0, 12.0]),
    "an assignment": lambda s: assigned(s, lambda fn: fn),
    "an assignment, compiled": lambda s: assigned(s, rx.function),
    "a read of copies": lambda s: copies(s),
    "the gradients of an optimizer": lambda s: trained(s),
}  # fmt: skip


def assigned(strategy, wrap):
    with strategy.scope():
        v = rx.Variable(jnp.zeros(2), aggregation=rx.VariableAggregation.MEAN)
    strategy.run(wrap(lambda x: v.assign_add(x)), args=(numbers(strategy),))
    return v.value, [1.0, 2.0]


def copies(strategy):
    with strategy.scope():
        mean = rx.metrics.Mean()
    strategy.run(lambda x: mean.update_state(x), args=(numbers(strategy),))
    return mean.result(), 1.5


def trained(strategy):
    with strategy.scope():
        w = rx.Variable(jnp.zeros(2))
        optimizer = rx.optimizers.SGD(1.0)
    step = rx.function(
        lambda x: optimizer.apply_gradients([(rx.grad(lambda: (w * x).sum(), w), w)])
    )
    strategy.run(step, args=(numbers(strategy),))
    return w.value, [-3.0, -6.0]


@pytest.mark.parametrize("ops", [Adding, Together])
@pytest.mark.parametrize("way", WAYS)
def test_the_object_is_asked_and_its_answer_is_the_result(way, ops):
    mine = ops()
    value, expected = WAYS[way](of(mine))
    np.testing.assert_allclose(np.asarray(getattr(value, "read_value", lambda: value)()), expected)
    assert mine.calls


def test_what_the_object_says_counts_and_not_a_sum():
    class Largest(rx.CrossDeviceOps):
        def reduce_implementation(self, reduce_op, value, destinations, options):
            return jnp.stack(value.values).max(axis=0)  # without a broadcast it serves as well

    strategy = of(Largest())
    np.testing.assert_array_equal(strategy.reduce("SUM", numbers(strategy), axis=None), [2.0, 3.0])
    for result in all_reduced(strategy):
        np.testing.assert_array_equal(result["a"].read_value(), [2.0, 3.0])


def test_many_values_come_together_where_that_is_overridden():
    mine = Together()
    all_reduced(of(mine))
    assert 2 in mine.calls  # the two leaves of one all_reduce in a compiled step


def test_the_default_implementations_do_what_the_strategy_does():
    class Noting(rx.CrossDeviceOps):
        noted = 0

        def reduce_implementation(self, *args):
            self.noted += 1
            return super().reduce_implementation(*args)

        def broadcast_implementation(self, tensor, destinations):
            return super().broadcast_implementation(tensor * 10, destinations)

    mine = Noting()
    strategy = of(mine)
    np.testing.assert_array_equal(strategy.reduce("SUM", numbers(strategy), axis=None), [3.0, 6.0])
    assert mine.noted == 1
    mirrored = strategy.extended.broadcast_to(2.0, numbers(strategy))
    np.testing.assert_array_equal(mirrored.read_value(), 20.0)


@pytest.mark.parametrize(
    "ops", [rx.CrossDeviceOps, rx.NcclAllReduce, rx.ReductionToOneDevice], ids=lambda c: c.__name__
)
@pytest.mark.filterwarnings("ignore:NcclAllReduce is the default")
def test_the_documented_calls_work_on_every_kind(ops):
    mine = ops()
    strategy = of(mine)
    x = numbers(strategy)
    np.testing.assert_array_equal(mine.reduce("SUM", x, "CPU:0"), [3.0, 6.0])
    first, second = mine.batch_reduce(rx.ReduceOp.MEAN, [(x, x), (x, "CPU:1")])
    assert isinstance(first, rx.Mirrored)
    np.testing.assert_array_equal(second, [1.0, 2.0])
    assert isinstance(mine.broadcast(1.0, x), rx.Mirrored)


def test_wrong_answers_and_calls_are_named():
    class Wrong(rx.CrossDeviceOps):
        answer = staticmethod(lambda value: value)

        def reduce_implementation(self, reduce_op, value, destinations, options):
            return self.answer(value)

        def batch_reduce_implementation(self, reduce_op, pairs, options):
            return []

    mine = Wrong()
    strategy = of(mine)
    x = numbers(strategy)
    with pytest.raises(DistributedValueError, match="Wrong returned a PerReplica value where one"):
        strategy.reduce("SUM", x, axis=None)
    mine.answer = lambda value: jnp.zeros(5)
    with pytest.raises(ReductionError, match=r"Wrong returned shape \(5,\) for components of sha"):
        strategy.reduce("SUM", x, axis=None)
    with pytest.raises(ReductionError, match=r"returned \[\] for 2 pairs. Return a list with one"):
        strategy.extended.batch_reduce_to("SUM", [(x, x), (x, x)])
    with pytest.raises(ReductionError, match="batch_reduce got 3; expected pairs of a value and a"):
        mine.batch_reduce("SUM", [3])
    with pytest.raises(ContextError, match=r"this CrossDeviceOps was given to no strategy that"):
        rx.CrossDeviceOps().reduce("SUM", x, x)
    with pytest.raises(ValueError, match=r"Adding combines whole values. Leave out one of the two"):
        rx.MirroredStrategy(cross_device_ops=Adding(), sharding=rx.experimental.Sharding(stage=3))
