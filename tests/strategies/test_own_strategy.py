"""A user's strategy: all logic in a subclass of `StrategyExtended`, and nothing private."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored
from tests.docs.pages import ROOT, blocks_of

PAGE = ROOT / "docs" / "your_own_strategy.md"
MAX_LINES = 100


class OwnExtended(rx.StrategyExtended):
    def __init__(self, container_strategy, devices, cross_device_ops=None):
        super().__init__(container_strategy)
        self.set_replica_devices(devices, cross_device_ops)
        self.log = []

    def run(self, fn, args, kwargs, options):
        self.log.append(("run", args))
        return super().run(fn, args, kwargs, options)

    def create_variable(self, **options):
        self.log.append(("create", options["name"]))
        return super().create_variable(**options)

    def reduce(self, op, value, axis):
        self.log.append(("reduce", op))
        return super().reduce(op, value, axis)

    def batch_reduce_to(self, reduce_op, value_destination_pairs, *hints):
        self.log.append(("batch_reduce_to", len(value_destination_pairs)))
        return super().batch_reduce_to(reduce_op, value_destination_pairs, *hints)

    @property
    def should_checkpoint(self):
        return False


class OwnStrategy(rx.Strategy):
    def __init__(self, devices=("CPU:3", "CPU:5"), cross_device_ops=None):
        super().__init__(OwnExtended(self, devices, cross_device_ops))


def test_it_runs_where_it_says(execute):
    strategy = OwnStrategy()
    assert strategy.extended.worker_devices == ("CPU:3", "CPU:5")
    assert strategy.num_replicas_in_sync == 2
    assert repr(strategy) == "<OwnStrategy: 2 replicas on CPU:3, CPU:5>"
    with strategy.scope():
        v = rx.Variable(1.0, name="w", aggregation=rx.VariableAggregation.SUM)

    def fn(x):
        v.assign_add(x.sum())
        return x * 2

    batch = strategy.distribute_batch(np.arange(4.0, dtype=np.float32))
    result = execute(strategy, fn, args=(batch,))
    assert float(v) == 7.0
    assert float(strategy.reduce("SUM", result, axis=0)) == 12.0
    assert [name for name, _ in strategy.extended.log] == ["create", "run", "reduce"]
    assert sorted(d.id for d in v.devices()) == [3, 5]
    assert strategy.extended.variable_created_in_scope(v)


def test_its_run_sees_every_way_of_running():
    strategy = OwnStrategy()
    compiled = rx.function(lambda: jnp.ones(()))
    strategy.run(lambda: None)
    strategy.run(compiled)
    strategy.run(compiled)
    strategy.extended.call_for_each_replica(compiled)
    rx.function(lambda: strategy.run(compiled))()
    with strategy.scope():
        strategy.run(compiled)
    assert len(strategy.extended.log) == 6


def test_reduce_to_goes_through_its_batch_reduce_to(execute):
    strategy = OwnStrategy()
    with strategy.scope():
        v = rx.Variable(1.0)

    def merge_fn(strategy, x):
        return strategy.extended.reduce_to("SUM", x, v)

    result = execute(
        strategy, lambda: rx.get_replica_context().merge_call(merge_fn, args=(jnp.ones(()),))
    )
    assert float(strategy.experimental_local_results(result)[0]) == 2.0
    assert ("batch_reduce_to", 1) in strategy.extended.log


def test_it_may_choose_how_values_are_added():
    strategy = OwnStrategy(cross_device_ops=rx.ReductionToOneDevice())
    value = strategy.run(lambda: jnp.ones(2))
    np.testing.assert_array_equal(strategy.reduce("SUM", value), [2, 2])
    with pytest.raises(TypeError, match="cross_device_ops is 'ring'; expected an instance of Cro"):
        OwnStrategy(cross_device_ops="ring")


def test_all_local_devices_are_the_default():
    assert OwnStrategy(devices=None).num_replicas_in_sync == 8


def test_its_answers_are_asked_for():
    assert OwnStrategy().extended.should_checkpoint is False
    assert OwnStrategy().extended.should_save_summary is True


def test_a_strategy_without_devices_says_what_to_call():
    class Forgetful(rx.StrategyExtended):
        pass

    class ForgetfulStrategy(rx.Strategy):
        def __init__(self):
            super().__init__(Forgetful(self))

    with pytest.raises(RuntimeError, match=r"Forgetful has no devices. Call self\.set_replica_dev"):
        ForgetfulStrategy().run(lambda: None)


def test_the_resolver_is_set_in_the_extended_class():
    class ResolvedExtended(OwnExtended):
        def __init__(self, container_strategy):
            super().__init__(container_strategy, ["CPU:1"])
            self.cluster_resolver = resolver

    class ResolvedStrategy(rx.Strategy):
        def __init__(self):
            super().__init__(ResolvedExtended(self))

    resolver = object()
    assert ResolvedStrategy().cluster_resolver is resolver


def test_the_resolver_may_be_a_property_of_the_strategy():
    class ResolvedStrategy(OwnStrategy):
        @property
        def cluster_resolver(self):
            return resolver

    resolver = object()
    assert ResolvedStrategy().cluster_resolver is resolver


def test_a_strategy_of_one_machine_has_no_resolver(strategy):
    assert strategy.cluster_resolver is None


def test_an_extended_belongs_to_its_container():
    strategy = mirrored(2)
    extended = OwnExtended(strategy, ["CPU:0", "CPU:1"])
    with strategy.scope():
        v = rx.Variable(1.0)
    assert extended.variable_created_in_scope(v)


def test_the_tutorial_builds_one_in_under_100_lines():
    blocks = [block for block in blocks_of(PAGE) if block.language == "python"]
    assert sum(len(block.text.splitlines()) for block in blocks) < MAX_LINES


def test_the_tutorial_uses_public_names_only():
    text = "".join(block.text for block in blocks_of(PAGE) if block.language == "python")
    assert not re.search(r"\._[a-z]", text)


def test_every_name_of_the_table_can_be_overridden():
    rows = re.findall(r"^\| (`[^|]*`) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)", row)]
    assert len(names) > 15
    assert [name for name in names if not hasattr(rx.StrategyExtended, name)] == []
