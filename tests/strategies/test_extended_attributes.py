"""What `StrategyExtended` says about a strategy."""

import inspect

import jax.numpy as jnp
import pytest

import replicax as rx
from tests.contracts.strategies import central, mirrored

CONSTANT = {
    "experimental_between_graph": False,
    "experimental_require_static_shapes": False,
    "experimental_should_init": True,
    "should_checkpoint": True,
    "should_save_summary": True,
}

# Every method of the document that is not about input pipelines.
METHODS = {
    "batch_reduce_to": "reduce_op, value_destination_pairs",
    "broadcast_to": "tensor, destinations",
    "call_for_each_replica": "fn, args=(), kwargs=None",
    "colocate_vars_with": "colocate_with_variable",
    "experimental_run_steps_on_iterator": "fn, iterator, iterations=1, initial_loop_values=None",
    "non_slot_devices": "var_list",
    "read_var": "v",
    "reduce_to": "reduce_op, value, destinations",
    "update": "var, fn, args=(), kwargs=None, group=True",
    "update_non_slot": "colocate_with, fn, args=(), kwargs=None, group=True",
    "value_container": "value",
    "variable_created_in_scope": "v",
}


@pytest.mark.parametrize("name", CONSTANT)
def test_an_attribute_is_a_constant(strategy, name):
    assert getattr(strategy.extended, name) is CONSTANT[name]
    strategy.run(lambda: None)
    assert getattr(strategy.extended, name) is CONSTANT[name]
    with pytest.raises(AttributeError, match="no setter"):
        setattr(strategy.extended, name, True)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_documented_arguments(name):
    parameters = list(inspect.signature(getattr(rx.StrategyExtended, name)).parameters.values())
    documented = len(METHODS[name].split(", "))
    shown = ", ".join(str(p.replace(annotation=p.empty)) for p in parameters[1 : documented + 1])
    assert shown == METHODS[name]
    assert all(p.default is None for p in parameters[documented + 1 :])


def test_devices_are_tuples_of_names(strategy):
    extended = strategy.extended
    assert isinstance(extended.worker_devices, tuple)
    assert isinstance(extended.parameter_devices, tuple)
    assert all(isinstance(name, str) for name in extended.worker_devices)
    assert len(extended.worker_devices) == strategy.num_replicas_in_sync


def test_there_is_one_worker_device_per_replica_and_it_computes_there(distributed):
    for name in distributed.extended.worker_devices:
        assert name.startswith("CPU:")
    seen = distributed.run(lambda: rx.get_replica_context().devices[0])
    if distributed.num_replicas_in_sync > 1:
        assert distributed.experimental_local_results(seen) == distributed.extended.worker_devices
    else:
        assert (seen,) == distributed.extended.worker_devices


def test_parameter_devices_match_worker_devices_when_variables_are_mirrored():
    for extended in (mirrored(3).extended, rx.OneDeviceStrategy("CPU:2").extended):
        assert extended.parameter_devices == extended.worker_devices


def test_parameter_devices_differ_from_worker_devices_under_central_storage():
    extended = central(3).extended
    assert extended.worker_devices == ("CPU:1", "CPU:2", "CPU:3")
    assert extended.parameter_devices == ("CPU:0",)


def test_central_storage_uses_all_devices_and_the_first_one_by_default():
    extended = rx.experimental.CentralStorageStrategy().extended
    assert extended.worker_devices == tuple(f"CPU:{i}" for i in range(8))
    assert extended.parameter_devices == ("CPU:0",)
    extended = rx.experimental.CentralStorageStrategy(["CPU:3", "CPU:4"]).extended
    assert extended.parameter_devices == ("CPU:3",)


def test_variables_are_on_the_parameter_devices(distributed):
    with distributed.scope():
        v = rx.Variable([1.0, 2.0])
    names = {f"CPU:{device.id}" for device in v.devices()}
    assert names == set(distributed.extended.parameter_devices)


def test_call_for_each_replica_runs_in_replica_context(strategy, execute):
    def fn(x, *, y):
        assert not rx.in_cross_replica_context()
        return x + y + rx.get_replica_context().replica_id_in_sync_group

    call = strategy.extended.call_for_each_replica
    if execute.name == "inside":
        result = rx.function(lambda: call(fn, args=[1.0], kwargs={"y": 2.0}))()
    else:
        result = call(rx.function(fn) if execute.is_compiled else fn, [1.0], {"y": 2.0})
    seen = [float(value) for value in strategy.experimental_local_results(result)]
    assert seen == [3.0 + i for i in range(strategy.num_replicas_in_sync)]


def test_the_example_of_merge_call(strategy, execute):
    def merge_fn(distribution, three_plus_replica_id):
        assert rx.in_cross_replica_context()
        return sum(distribution.experimental_local_results(three_plus_replica_id))

    def fn(three):
        replica_ctx = rx.get_replica_context()
        v = three + replica_ctx.replica_id_in_sync_group
        s = replica_ctx.merge_call(merge_fn, args=(v,))
        return s + v

    n = strategy.num_replicas_in_sync
    with strategy.scope():
        merged_results = execute(strategy, fn, args=[3])
        printed = [int(x) for x in strategy.experimental_local_results(merged_results)]
    total = sum(3 + i for i in range(n))
    assert printed == [total + 3 + i for i in range(n)]


def test_results_are_merged_by_what_they_are(many, execute):
    x = jnp.ones(2)
    with many.scope():
        v = rx.Variable(2.0)

    def fn():
        return x, rx.get_replica_context().replica_id_in_sync_group * 1.0, v

    same, different, variable = execute(many, fn)
    assert same is x
    assert isinstance(different, rx.PerReplica)
    assert variable is v


def test_every_strategy_of_one_worker_is_its_own_chief(strategy):
    assert strategy.is_chief
