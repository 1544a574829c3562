"""The methods that ``tf.compat.v1`` has for a strategy, and its names in `replicax.tf`."""

import jax.numpy as jnp
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.core import notices

V1 = tf.compat.v1.distribute

SAME = (
    *("CrossDeviceOps", "HierarchicalCopyAllReduce", "MirroredStrategy", "NcclAllReduce"),
    *("OneDeviceStrategy", "ReduceOp", "ReductionToOneDevice", "ReplicaContext", "RunOptions"),
    *("Strategy", "StrategyExtended", "experimental_set_strategy", "get_replica_context"),
    *("get_strategy", "has_strategy", "in_cross_replica_context"),
)
EXPERIMENTAL = (
    *("CentralStorageStrategy", "CollectiveCommunication", "CollectiveHints"),
    *("CommunicationImplementation", "CommunicationOptions"),
)


@pytest.fixture
def warns():
    """``with warns(name, instead):`` the first use in it warns, and further ones do not."""

    def expect(name, instead):
        notices.forget(("deprecated", name))
        return pytest.warns(DeprecationWarning, match=f"^{name} is deprecated. Use {instead}")

    return expect


@pytest.mark.parametrize("name", SAME)
def test_a_name_is_that_of_the_package(name):
    assert getattr(V1, name) is getattr(rx, name)
    assert getattr(V1, name) is getattr(tf.distribute, name)


@pytest.mark.parametrize("name", EXPERIMENTAL)
def test_an_experimental_name_is_in_both_spellings(name):
    assert getattr(V1.experimental, name) is getattr(rx.experimental, name)
    assert getattr(tf.distribute.experimental, name) is getattr(rx.experimental, name)


def test_names_beside_distribute():
    assert tf.compat.v1.Variable is rx.Variable
    assert tf.compat.v1.VariableAggregation is rx.VariableAggregation
    assert tf.compat.v1.VariableSynchronization is rx.VariableSynchronization
    assert tf.compat.v1.variable_creator_scope is rx.variable_creator_scope


def test_the_loss_reduction_is_a_sum(strategy):
    assert V1.get_loss_reduction() is rx.ReduceOp.SUM
    with strategy.scope():
        assert V1.get_loss_reduction() is rx.ReduceOp.SUM


def test_experimental_run_v2_is_run(strategy, warns):
    def fn(x, *, y):
        return x + y + rx.get_replica_context().replica_id_in_sync_group

    with warns("Strategy.experimental_run_v2", r"Strategy\.run instead"):
        first = strategy.experimental_run_v2(fn, args=(1.0,), kwargs={"y": 2.0})
    second = strategy.experimental_run_v2(rx.function(fn), [1.0], {"y": 2.0}, rx.RunOptions())
    for result in (first, second):
        seen = [float(x) for x in strategy.experimental_local_results(result)]
        assert seen == [3.0 + i for i in range(strategy.num_replicas_in_sync)]


def test_experimental_run_takes_the_next_element(strategy, warns):
    data = iter([strategy.experimental_distribute_values_from_function(lambda ctx: 2.0)])
    with warns("Strategy.experimental_run", r"Strategy\.run instead"):
        result = strategy.experimental_run(lambda x: jnp.float32(x) + 1, data)
    assert float(strategy.experimental_local_results(result)[0]) == 3.0
    with pytest.raises(IndexError, match=r"the input_iterator of .* has ended"):
        strategy.experimental_run(lambda x: x, data)


def test_experimental_run_without_input(strategy, warns):
    with warns("Strategy.experimental_run", r"Strategy\.run instead"):
        assert strategy.experimental_run(lambda: 5) == 5


def test_unwrap_is_local_results(many, warns):
    value = many.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    with warns("Strategy.unwrap", r"Strategy\.experimental_local_results instead"):
        assert many.unwrap(value) == tuple(range(many.num_replicas_in_sync))


def test_group_has_nothing_to_do(strategy, warns):
    with warns("Strategy.group", "nothing"):
        assert strategy.group(strategy.run(lambda: jnp.ones(2)), name="train") is None


def test_colocate_vars_with_is_that_of_extended(distributed, warns):
    with distributed.scope():
        v = rx.Variable(1.0)
        with (
            warns("Strategy.colocate_vars_with", r"Strategy\.extended\.colocate_vars_with"),
            distributed.colocate_vars_with(v),
        ):
            slot = rx.Variable(1.0)
    assert slot.devices() == v.devices()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("configure", "complete when it is created"), ("update_config_proto", "no session")],
)
def test_a_name_of_the_graph_era_says_why_it_is_missing(strategy, name, reason):
    assert not hasattr(strategy, name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{reason}"):
        getattr(strategy, name)


def test_another_missing_name_is_an_ordinary_error(two):
    with pytest.raises(
        AttributeError, match="'MirroredStrategy' object has no attribute 'no_such'"
    ):
        two.no_such  # noqa: B018
