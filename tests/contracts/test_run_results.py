"""How ``run`` merges what the replicas return."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import IN_CLUSTER


class Point(NamedTuple):
    x: object
    y: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Example:
    image: object
    label: object


def replica_ids(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(ctx.replica_id_in_sync_group, jnp.float32)
    )


def components(strategy, result):
    return [float(value) for value in strategy.experimental_local_results(result)]


class Marker:
    """An object that is the same for all replicas."""


MARKER = Marker()
CAPTURED = jnp.arange(3.0)

SAME = {
    "None": lambda: None,
    "int": lambda: 7,
    "bool": lambda: True,
    "float": lambda: 0.5,
    "equal floats made anew": lambda: float("1.25"),
    "str": lambda: "text",
    "equal strs made anew": lambda: "".join(["te", "xt"]),
    "bytes": lambda: b"x",
    "object": lambda: MARKER,
    "captured array": lambda: CAPTURED,
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_object_from_every_replica_stays_that_object(strategy, execute, case):
    result = execute(strategy, SAME[case])
    expected = SAME[case]()
    if IN_CLUSTER and case == "captured array" and not execute.is_compiled:
        assert isinstance(result, rx.PerReplica)  # another worker may have captured another one
        return
    assert type(result) is type(expected)
    if case in ("object", "captured array", "None"):
        assert result is expected
    else:
        assert result == expected


def test_an_argument_passed_straight_through_stays_that_object(strategy, execute):
    array = jnp.ones(2)
    value = replica_ids(strategy)
    results = execute(strategy, lambda *args: args, args=(array, 3, 2.5, "s", value))
    assert results[0] is array
    assert results[1:4] == (3, 2.5, "s")
    assert all(type(r) is t for r, t in zip(results[1:4], (int, float, str), strict=True))
    count = strategy.num_replicas_in_sync
    assert components(strategy, results[4]) == [float(i) for i in range(count)]
    assert isinstance(results[4], rx.PerReplica) == (count > 1)


def test_a_numpy_argument_passed_straight_through_stays_that_object(strategy, execute):
    array = np.ones(2, np.float32)
    result = execute(strategy, lambda x: x, args=(array,))
    if execute.name == "inside":  # a host array becomes a device array where it leaves function
        assert not isinstance(result, rx.DistributedValues)
        np.testing.assert_array_equal(result, array)
    else:
        assert result is array


def test_a_mirrored_argument_passed_straight_through_stays_that_object(many, execute):
    total = many.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
    assert execute(many, lambda x: x, args=(total,)) is total


def test_what_fn_computes_is_per_replica_even_when_equal(many, execute):
    def replica_fn(x):
        return jnp.ones(()), CAPTURED + 1, x * 1.0, CAPTURED.sum()

    for result in execute(many, replica_fn, args=(jnp.ones(()),)):
        assert isinstance(result, rx.PerReplica)
        assert len(many.experimental_local_results(result)) == many.num_replicas_in_sync


def test_numpy_arrays_made_in_fn_are_per_replica(many, execute):
    constant = np.arange(2.0, dtype=np.float32)

    def replica_fn():
        return np.ones(2, np.float32), np.float32(3), constant

    for result in execute(many, replica_fn):
        assert isinstance(result, rx.PerReplica)


def test_different_python_numbers_become_per_replica(many, eager):
    result = eager(many, lambda: rx.get_replica_context().replica_id_in_sync_group)
    assert isinstance(result, rx.PerReplica)
    assert many.experimental_local_results(result) == tuple(range(many.num_replicas_in_sync))


def test_equal_numbers_of_different_types_are_not_the_same(two, eager):
    def replica_fn():
        return (1, 1.0)[rx.get_replica_context().replica_id_in_sync_group]

    result = eager(two, replica_fn)
    assert isinstance(result, rx.PerReplica)
    assert [type(v) for v in two.experimental_local_results(result)] == [int, float]


def test_an_untouched_all_reduce_result_is_mirrored(many, execute):
    def replica_fn(x):
        context = rx.get_replica_context()
        return context.all_reduce("SUM", x), context.all_gather(x[None], axis=0)

    total, gathered = execute(many, replica_fn, args=(replica_ids(many),))
    assert isinstance(total, rx.Mirrored)
    assert isinstance(gathered, rx.Mirrored)
    count = many.num_replicas_in_sync
    assert components(many, total) == [count * (count - 1) / 2] * count
    np.testing.assert_array_equal(gathered, np.arange(count))


def test_what_is_computed_from_an_all_reduce_result_is_per_replica(many, execute):
    def replica_fn(x):
        total = rx.get_replica_context().all_reduce("SUM", x)
        return total + 0, jnp.sqrt(total), total * x

    for result in execute(many, replica_fn, args=(replica_ids(many),)):
        assert isinstance(result, rx.PerReplica)


def test_results_are_wrapped_for_many_replicas_and_bare_for_one(strategy, execute):
    def replica_fn(x):
        context = rx.get_replica_context()
        return {"x": x * 2, "total": context.all_reduce("SUM", x), "numpy": np.ones(2), "n": 1}

    result = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    wrapped = {name: isinstance(leaf, rx.DistributedValues) for name, leaf in result.items()}
    many_replicas = strategy.num_replicas_in_sync > 1
    assert wrapped == dict.fromkeys(["x", "total", "numpy"], many_replicas) | {"n": False}


def test_results_keep_their_nest(strategy, execute):
    def replica_fn(x):
        return {"a": Point(x, None), "b": [Example(x + 1, (x, "s"))], "c": ()}

    result = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    assert isinstance(result["a"], Point) and result["a"].y is None
    assert isinstance(result["b"][0], Example) and isinstance(result["b"], list)
    assert result["b"][0].label[1] == "s" and result["c"] == ()
    ids = [float(i) for i in range(strategy.num_replicas_in_sync)]
    assert components(strategy, result["a"].x) == ids
    assert components(strategy, result["b"][0].image) == [i + 1 for i in ids]


def test_a_returned_variable_is_the_variable(strategy, execute):
    with strategy.scope():
        mirrored = rx.Variable(1.0)
        synced = rx.Variable(
            1.0,
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.SUM,
        )
    plain = rx.Variable(2.0)
    results = execute(strategy, lambda: {"m": mirrored, "s": [synced], "p": plain})
    assert results["m"] is mirrored
    assert results["s"][0] is synced
    assert results["p"] is plain


def test_views_of_one_variable_become_that_variable(distributed, eager):
    with distributed.scope():
        variable = rx.Variable([1.0, 2.0])
    views = distributed.experimental_local_results(variable)

    def replica_fn():
        return views[rx.get_replica_context().replica_id_in_sync_group % len(views)]

    assert eager(distributed, replica_fn) is variable


def test_different_structures_are_refused(many, eager):
    def replica_fn():
        first = rx.get_replica_context().replica_id_in_sync_group == 0
        return (1.0, 2.0) if first else {"a": 1.0}

    kinds = (ValueError, RuntimeError) if IN_CLUSTER else ValueError  # one worker tells the other
    with pytest.raises(kinds, match=r"same structure: replica 0 returned .*, replica \d"):
        eager(many, replica_fn)
    assert components(many, many.run(lambda x: x + 1, args=(replica_ids(many),)))[0] == 1.0


def test_different_structures_are_refused_when_compiled(many, compiled):
    def replica_fn(x):
        return (x, x) if x.shape[0] > 1 else {"a": x}

    batch = many.distribute_batch(np.ones(many.num_replicas_in_sync + 1, np.float32))
    with pytest.raises(ValueError, match=r"same structure"):
        compiled(many, replica_fn, args=(batch,))
    assert components(many, many.run(lambda x: x + 1, args=(replica_ids(many),)))[0] == 1.0


def test_bools_ints_and_half_floats_keep_their_dtype(strategy, execute):
    def replica_fn(x):
        return x > 0, x.astype(jnp.int32), x.astype(jnp.bfloat16), x.astype(jnp.uint8)

    results = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    dtypes = [strategy.experimental_local_results(r)[0].dtype for r in results]
    assert dtypes == [jnp.bool_, jnp.int32, jnp.bfloat16, jnp.uint8]


def test_a_result_may_be_passed_to_the_next_run(strategy, execute):
    first = execute(strategy, lambda x: {"x": x + 1}, args=(replica_ids(strategy),))
    second = execute(strategy, lambda d: d["x"] * 2, args=(first,))
    count = strategy.num_replicas_in_sync
    assert components(strategy, second) == [2 * (i + 1) for i in range(count)]


def test_random_keys_are_results_and_arguments(strategy, execute):
    keys = strategy.experimental_distribute_values_from_function(
        lambda ctx: jax.random.key(ctx.replica_id_in_sync_group)
    )
    same = execute(strategy, lambda key: jax.random.clone(key), args=(keys,))
    data = execute(strategy, lambda key: jax.random.key_data(key) + 0, args=(same,))
    for index, component in enumerate(strategy.experimental_local_results(data)):
        np.testing.assert_array_equal(component, jax.random.key_data(jax.random.key(index)))
