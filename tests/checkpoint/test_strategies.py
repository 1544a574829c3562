"""A checkpoint of one strategy is restored by any other."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.errors import CheckpointMismatchError
from replicax.checkpoint.reader import list_variables, load_checkpoint
from tests.contracts.strategies import STRATEGIES, central, mirrored

ON_READ = rx.VariableSynchronization.ON_READ
AGGREGATIONS = ["SUM", "MEAN", "ONLY_FIRST_REPLICA"]


def make(strategy):
    """One variable of each kind, and what a read across replicas gives."""
    with strategy.scope():
        made = {
            "weight": rx.Variable(np.zeros((3, 2), np.float32)),
            "steps": rx.Variable(np.int32(0)),
            "half": rx.Variable(jnp.zeros(5, jnp.bfloat16)),
            "none": rx.Variable(np.zeros((0, 4), np.float32)),
        }
        for name in AGGREGATIONS:
            made[name] = rx.Variable(
                np.zeros(3, np.float32),
                synchronization=ON_READ,
                aggregation=rx.VariableAggregation[name],
            )
    return made


def fill(strategy, variables):
    variables["weight"].assign(np.arange(6, dtype=np.float32).reshape(3, 2))
    variables["steps"].assign(17)
    variables["half"].assign(jnp.full(5, 0.5, jnp.bfloat16))

    def replica_fn():
        replica = rx.get_replica_context().replica_id_in_sync_group
        for name in AGGREGATIONS:
            variables[name].assign(np.float32([0.1, 0.2, 0.7]) * (1 + replica))

    strategy.run(replica_fn)


def values(variables):
    return {name: variable.numpy() for name, variable in variables.items()}


@pytest.mark.parametrize("target", STRATEGIES)
@pytest.mark.parametrize("source", STRATEGIES)
def test_every_variable_reads_the_same_after_a_restore_elsewhere(source, target, tmp_path):
    strategy = STRATEGIES[source]()
    saved = make(strategy)
    fill(strategy, saved)
    path = Checkpoint(variables=saved).write(tmp_path / "saved")
    restored = make(STRATEGIES[target]())

    Checkpoint(variables=restored).read(path).assert_consumed()

    for name, value in values(saved).items():
        np.testing.assert_allclose(values(restored)[name], value, rtol=1e-6, err_msg=name)


def test_what_is_saved_of_a_variable_is_its_value_once(strategy, tmp_path):
    with strategy.scope():
        weight = rx.Variable(np.float32([1, 2]))
        count = rx.Variable(
            4.0, synchronization=ON_READ, aggregation=rx.VariableAggregation.ONLY_FIRST_REPLICA
        )
    path = Checkpoint(weight=weight, count=count).write(tmp_path / "saved")

    assert list_variables(path) == [("count", []), ("weight", [2])]
    np.testing.assert_array_equal(load_checkpoint(path).get_tensor("weight"), [1, 2])
    assert load_checkpoint(path).get_tensor("count") == 4
    assert load_checkpoint(path).get_variable_to_dtype_map()["weight"] == np.float32


def independent(strategy):
    with strategy.scope():
        return rx.Variable(np.int32([0]), synchronization=ON_READ)


def copies_of(strategy, variable):
    return [int(np.asarray(copy)[0]) for copy in strategy.experimental_local_results(variable)]


def numbered(strategy):
    variable = independent(strategy)
    strategy.run(
        lambda: variable.assign(np.int32([10]) + rx.get_replica_context().replica_id_in_sync_group)
    )
    return variable


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "default"])
def test_copies_that_cannot_be_combined_are_saved_one_by_one(name, tmp_path):
    strategy = STRATEGIES[name]()
    saved = numbered(strategy)
    path = Checkpoint(ids=saved).write(tmp_path / "saved")
    again = STRATEGIES[name]()
    restored = independent(again)

    Checkpoint(ids=restored).read(path).assert_consumed()

    expected = [10 + i for i in range(strategy.num_replicas_in_sync)]
    assert copies_of(again, restored) == copies_of(strategy, saved) == expected
    assert load_checkpoint(path).get_tensor("ids").shape == (strategy.num_replicas_in_sync, 1)


def test_copies_that_cannot_be_combined_need_as_many_copies(tmp_path):
    path = Checkpoint(ids=numbered(mirrored(2))).write(tmp_path / "saved")
    restored = independent(mirrored(3))

    with pytest.raises(
        CheckpointMismatchError, match="ids: 3 independent copies here, 2 in the checkpoint"
    ):
        Checkpoint(ids=restored).read(path)


def test_the_exact_copies_come_back_where_there_are_as_many(tmp_path):
    saved = make(mirrored(3))
    fill(saved["weight"].strategy, saved)
    path = Checkpoint(variables=saved).write(tmp_path / "saved")
    other = central(3)
    restored = make(other)

    Checkpoint(variables=restored).read(path)

    for name in AGGREGATIONS:
        copies = saved["weight"].strategy.experimental_local_results(saved[name])
        given = other.experimental_local_results(restored[name])
        for copy, mine in zip(copies, given, strict=True):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(copy))


def test_every_copy_has_a_buffer_of_its_own_after_a_restore(tmp_path):
    saved = rx.Variable(np.ones((64, 64), np.float32))
    path = Checkpoint(w=saved).write(tmp_path / "saved")
    strategy = mirrored(8)
    with strategy.scope():
        w = rx.Variable(np.zeros((64, 64), np.float32))

    Checkpoint(w=w).read(path)

    shards = w._storage.array.addressable_shards
    assert len({shard.data.unsafe_buffer_pointer() for shard in shards}) == 8
