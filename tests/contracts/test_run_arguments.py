"""What ``run`` hands to the replica function."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from tests.contracts.strategies import local_ids


class Point(NamedTuple):
    x: object
    y: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Example:
    image: object
    label: object
    name: str = dataclasses.field(default="", metadata={"static": True})


def replica_ids(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(ctx.replica_id_in_sync_group, jnp.float32)
    )


def components(strategy, result):
    return [float(value) for value in strategy.experimental_local_results(result)]


def ids(strategy):
    return [float(i) for i in range(strategy.num_replicas_in_sync)]


def test_each_replica_gets_its_component(strategy, execute):
    result = execute(strategy, lambda x: x * 2, args=(replica_ids(strategy),))
    assert components(strategy, result) == [2 * i for i in ids(strategy)]


def test_arguments_may_come_by_keyword(strategy, execute):
    value = replica_ids(strategy)
    result = execute(strategy, lambda x, *, y: x + y, args=(value,), kwargs={"y": value})
    assert components(strategy, result) == [2 * i for i in ids(strategy)]


def test_args_may_be_a_list(strategy, execute):
    result = execute(strategy, lambda x, y: x + y, args=[replica_ids(strategy), 1.0])
    assert components(strategy, result) == [i + 1 for i in ids(strategy)]


def test_named_tuples_dataclasses_dicts_and_none_arrive_as_what_they_are(strategy, execute):
    value = replica_ids(strategy)
    argument = {
        "point": Point(value, None),
        "example": Example(image=[value, (value,)], label=2.0, name="n"),
    }

    def replica_fn(argument, nothing):
        assert nothing is None
        point, example = argument["point"], argument["example"]
        assert isinstance(point, Point) and point.y is None
        assert isinstance(example, Example) and example.name == "n"
        assert isinstance(example.image, list) and isinstance(example.image[1], tuple)
        return point.x + example.image[0] + example.image[1][0] + example.label

    result = execute(strategy, replica_fn, args=(argument, None))
    assert components(strategy, result) == [3 * i + 2 for i in ids(strategy)]


def test_a_component_is_a_plain_array_inside(strategy, execute):
    seen = []

    def replica_fn(x):
        seen.append((isinstance(x, jax.Array), isinstance(x, rx.DistributedValues), x.shape))

    batch = np.ones((2 * strategy.num_replicas_in_sync, 3), np.float32)
    execute(strategy, replica_fn, args=(strategy.distribute_batch(batch),))
    assert set(seen) == {(True, False, (2, 3))}


def test_a_mirrored_argument_is_unwrapped(many, execute):
    total = many.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
    assert isinstance(total, rx.Mirrored)
    seen = []

    def replica_fn(total, x):
        seen.append(isinstance(total, rx.DistributedValues))
        return total + x

    result = execute(many, replica_fn, args=(total, replica_ids(many)))
    assert seen and not any(seen)
    assert components(many, result) == [many.num_replicas_in_sync + i for i in ids(many)]


def test_plain_arrays_and_numbers_reach_every_replica(strategy, execute):
    committed = jax.device_put(jnp.ones(()), jax.local_devices()[-1])

    def replica_fn(a, b, c, d, x):
        assert isinstance(d, str)
        return a + b + c + x

    args = (committed, np.float32(2), 3, "text", replica_ids(strategy))
    assert components(strategy, execute(strategy, replica_fn, args)) == [
        6 + i for i in ids(strategy)
    ]


def test_a_variable_is_passed_as_itself_and_reads_the_replicas_copy(strategy, execute):
    with strategy.scope():
        variable = rx.Variable(
            0.0,
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.SUM,
        )
    seen = []

    def replica_fn(v, x):
        seen.append(v is variable)
        v.assign(x + 1)
        return v.read_value() * 10

    result = execute(strategy, replica_fn, args=(variable, replica_ids(strategy)))
    assert seen and all(seen)
    assert components(strategy, result) == [10 * (i + 1) for i in ids(strategy)]
    assert float(variable.read_value()) == sum(i + 1 for i in ids(strategy))


def test_a_variable_in_a_nest_is_passed_as_itself(strategy, execute):
    with strategy.scope():
        variable = rx.Variable(3.0)
    seen = []

    def replica_fn(nest):
        seen.append(nest["v"][0] is variable)
        return nest["v"][0] * 2.0

    result = execute(strategy, replica_fn, args=({"v": [variable]},))
    assert seen and all(seen)
    assert components(strategy, result) == [6.0 for _ in ids(strategy)]


def test_eager_replicas_run_on_their_devices(strategy):
    devices = []

    def replica_fn():
        (device,) = (jnp.ones(()) + 1).devices()
        devices.append(device)

    strategy.run(replica_fn)
    assert devices == list(strategy.extended.mesh.local_devices)


def test_compiled_components_are_computed_on_their_devices(strategy):
    result = strategy.run(rx.function(lambda x: x + 1), args=(replica_ids(strategy),))
    parts = strategy.experimental_local_results(result)
    here = [parts[replica_id] for replica_id in local_ids(strategy)]
    assert [part.devices() for part in here] == [
        {device} for device in strategy.extended.mesh.local_devices
    ]


def test_uneven_components_reach_their_replicas_whole(strategy, execute):
    batch = np.arange(1.0, 6.0, dtype=np.float32)
    value = strategy.distribute_batch(batch)
    result = execute(strategy, lambda x: x * 2, args=(value,))
    parts = strategy.experimental_local_results(result)
    sizes = [part.shape for part in strategy.experimental_local_results(value)]
    assert [part.shape for part in parts] == sizes
    np.testing.assert_array_equal(np.concatenate(parts), batch * 2)


def test_uneven_components_may_be_combined_with_all_reduce(strategy, execute):
    value = strategy.distribute_batch(np.arange(1.0, 6.0, dtype=np.float32))

    def replica_fn(x):
        context = rx.get_replica_context()
        total = context.all_reduce("SUM", jnp.sum(x))
        count = context.all_reduce("SUM", x.shape[0])
        return jnp.sum(x - total / count)

    result = execute(strategy, replica_fn, args=(value,))
    assert abs(float(strategy.reduce("SUM", result, axis=None))) < 1e-5


def test_fn_must_be_callable_and_options_run_options(strategy):
    assert strategy.run(lambda: 1) == 1
    assert strategy.run(lambda: 1, options=rx.RunOptions()) == 1
