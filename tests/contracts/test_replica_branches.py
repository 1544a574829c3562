"""Python that branches on the replica id: what the replicas bring together may be of two kinds."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx

ONE, TEN = jnp.float32(1), jnp.float32(10)

pytestmark = pytest.mark.filterwarnings("ignore:Python branches on the replica id")


def parts(strategy, result):
    return strategy.experimental_local_results(result)


def context():
    return rx.get_replica_context()


def by_replica(first, other):
    return first if context().replica_id_in_sync_group == 0 else other


def total(strategy, value):
    return strategy.reduce("SUM", value, axis=None)


def merged(value):
    return context().merge_call(total, args=(value,))


def reduced(value):
    return context().all_reduce("SUM", value)


# What is merged, and what one replica and n - 1 others give together.
MERGED = {
    "captured arrays": (lambda: merged(by_replica(ONE, TEN)), lambda n: 1 + 10 * (n - 1)),
    "captured arrays in all_reduce": (
        lambda: reduced(by_replica(ONE, TEN)) * 1,
        lambda n: 1 + 10 * (n - 1),
    ),
    "numbers": (lambda: merged(by_replica(1.0, 10.0)), lambda n: 1 + 10 * (n - 1)),
    "two reduced values": (
        lambda: merged(by_replica(reduced(ONE), reduced(TEN))),
        lambda n: n + 10 * n * (n - 1),
    ),
    "two merged values": (
        lambda: merged(by_replica(*(merged(x) for x in (ONE * 1, TEN * 1)))),
        lambda n: n + 10 * n * (n - 1),
    ),
    "a reduced and a computed value": (
        lambda: (lambda once: merged(by_replica(once, TEN * 1)))(reduced(ONE)),
        lambda n: n + 10 * (n - 1),
    ),
    "a number and a reduced value": (
        lambda: (lambda once: merged(by_replica(1.0, once)))(reduced(ONE)),
        lambda n: 1 + n * (n - 1),
    ),
    "the second of two leaves": (
        lambda: (lambda once: merged((by_replica(once, TEN * 1), ONE * 2))[1])(reduced(ONE)),
        lambda n: 2 * n,
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_what_replicas_merge_may_be_of_different_kinds(many, execute, name):
    fn, expected = MERGED[name]
    for value in parts(many, execute(many, fn)):
        assert float(value) == expected(many.num_replicas_in_sync)


RETURNED = {
    "reduced values": lambda: by_replica(reduced(ONE), reduced(TEN)),
    "merged values": lambda: by_replica(merged(ONE * 1), merged(TEN * 1)),
    "arguments": lambda x, y: by_replica(x, y),
}


@pytest.mark.parametrize("name", RETURNED)
def test_replicas_return_different_values_of_one_kind(many, execute, name):
    n = many.num_replicas_in_sync
    args = ()
    scales = n
    if name == "arguments":
        args = [
            many.experimental_distribute_values_from_function(lambda ctx, x=x: x * 1)
            for x in (ONE, TEN)
        ]
        scales = 1
    result = execute(many, RETURNED[name], args=tuple(args))
    assert isinstance(result, rx.PerReplica)
    np.testing.assert_array_equal(parts(many, result), [scales] + [10 * scales] * (n - 1))


@pytest.mark.one_worker
def test_strings_of_the_replicas_reach_merge_fn_as_per_replica(many, execute):
    seen = []

    def merge_fn(strategy, name):
        seen.append(type(name))
        return name

    def fn():
        return context().merge_call(merge_fn, args=(by_replica("a", "b"),))

    results = list(parts(many, execute(many, fn)))
    assert results == [
        "a" if 0 in many.extended.mesh.local_replicas else "b",
        *["b"] * (len(results) - 1),
    ]
    assert set(seen) == {rx.PerReplica}


def test_an_array_and_a_string_cannot_be_merged_in_one_program(many, compiled):
    def fn():
        return context().merge_call(lambda s, x: x, args=(by_replica(ONE * 1, "b"),))

    with pytest.raises(ValueError, match=r"an array of shape \(\) and 'b'.*arrays on every"):
        compiled(many, fn)


def test_replicas_that_pass_different_structures_to_merge_call_are_refused(many, compiled):
    def fn():
        return context().merge_call(lambda s, x: x, args=(by_replica([ONE * 1], {"a": ONE * 1}),))

    with pytest.raises(ValueError, match=r"the same structure.*\[\*\].*\{'a': \*\}"):
        compiled(many, fn)


def ask_while_it_is_larger(variable, count):
    """A loop in which the replicas meet, and that goes on as long as the variable says."""
    return lax.while_loop(
        lambda state: state[0] < variable.value,
        lambda state: (state[0] + 1, state[1] + reduced(ONE)),
        (ONE * 0, count),
    )[1]


def set_to(strategy, variable, value):
    strategy.extended.update(variable, lambda v, x: v.assign(x), args=(value,))


def test_a_loop_goes_on_by_what_a_branch_assigned_on_each_replica_by_other_code(many, compiled):
    n = many.num_replicas_in_sync
    with many.scope():
        limit = rx.Variable(2.0, aggregation=rx.VariableAggregation.MEAN)
        own = rx.Variable(3.0, synchronization=rx.VariableSynchronization.ON_READ)

    def fn():
        def assign():
            limit.assign(by_replica(lambda: limit.value, lambda: own.value)())

        def body(total, number):
            lax.cond(number < 2, assign, lambda: None)  # the second replica reads `own` first
            return ask_while_it_is_larger(limit, total), None

        return lax.scan(body, ONE * 0, jnp.arange(2))[0]

    limits = []
    for _ in range(2):
        limits.append(((limits or [2.0])[-1] + 3 * (n - 1)) / n)
    rounds = sum(int(np.ceil(limit)) for limit in limits)
    for value in parts(many, compiled(many, fn)):
        assert float(value) == n * rounds


@pytest.mark.one_worker
def test_variables_that_hold_the_same_value_are_told_apart_in_loops(many, compiled):
    with many.scope():
        one, other = rx.Variable(1.0, name="one"), rx.Variable(2.0, name="other")

    def fn():
        set_to(many, one, 5.0)
        set_to(many, other, 5.0)

        def body(total, _):
            seen = by_replica(lambda: one.value - other.value, lambda: other.value - one.value)()
            set_to(many, one, reduced(total))
            return ask_while_it_is_larger(one, total + seen * 0), None

        return lax.scan(body, ONE, None, length=1)[0]

    n = many.num_replicas_in_sync
    for value in parts(many, compiled(many, fn)):
        assert float(value) == 1 + n * n
