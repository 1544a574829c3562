"""What `inspect_step` takes, what it leaves alone, and what it refuses."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.core.errors import ContextError, SignatureError, TraceError
from replicax.costs import program
from replicax.costs.program import inspect_step
from replicax.strategies.extended import StrategyExtended
from tests.contracts.strategies import central, mirrored

SUM = rx.VariableAggregation.SUM
ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)


def dense(strategy, **options):
    with strategy.scope():
        return rx.Variable(np.ones(3, np.float32), name="w", **options)


class Compilations:
    """Counts what XLA compiles from now on."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, name, seconds, **_):
        self.count += name.endswith("backend_compile_duration")


@pytest.fixture
def compilations():
    found = Compilations()
    yield found
    jax.monitoring.unregister_event_duration_listener(found._note)


def test_the_call_finds_the_program_that_was_inspected(compilations):
    strategy = mirrored(2)
    w = dense(strategy, aggregation=SUM)

    @rx.function
    def step(x):
        w.assign_add(x.sum(0))

    batch = strategy.distribute_batch(ROWS)
    strategy.run(lambda x: x, args=(batch,))
    inspect_step(step, (batch,), strategy=strategy)
    before = compilations.count
    assert before > 0
    strategy.run(step, args=(batch,))
    strategy.run(step, args=(batch,))
    assert (compilations.count, step.trace_count) == (before, 1)
    inspect_step(step, (batch,), strategy=strategy)
    assert (compilations.count, step.trace_count) == (before, 1)
    np.testing.assert_array_equal(w.numpy(), 1 + 2 * ROWS.sum(0))


def test_variables_of_the_first_call_are_created_and_have_their_initial_values():
    strategy = mirrored(2)
    model = {}

    @rx.function
    def step(x):
        if not model:
            model["w"] = rx.Variable(jnp.full(3, 2.0), name="made", aggregation=SUM)
        model["w"].assign_add(x.sum(0))

    batch = strategy.distribute_batch(ROWS)
    found = inspect_step(step, (batch,), strategy=strategy)
    assert [one.name for one in found.state] == ["made"]
    np.testing.assert_array_equal(model["w"].numpy(), [2, 2, 2])
    assert step.trace_count == found.num_traces == 2
    strategy.run(step, args=(batch,))
    assert step.trace_count == 2
    np.testing.assert_array_equal(model["w"].numpy(), 2 + ROWS.sum(0))


def test_a_plain_function_is_seen_as_a_compiled_one():
    strategy = mirrored(2)
    w = dense(strategy)

    def step(x, scale):
        return scale * rx.get_replica_context().all_reduce("SUM", (w * x).sum())

    found = inspect_step(
        step, (strategy.distribute_batch(ROWS),), {"scale": 2.0}, strategy=strategy
    )
    assert [one.num_bytes for one in found.collectives] == [4]
    assert [(one.name, one.dtype) for one in found.arguments] == [
        ("'x'", "float32"),
        ("'scale'", "float32"),
    ]
    assert found.name.endswith("step")


def test_no_strategy_is_one_device_without_collectives():
    v = rx.Variable(np.ones(4, np.float32), name="v")
    found = inspect_step(lambda x: v.assign_add(x), (np.ones(4, np.float32),))
    assert (found.strategy, found.num_replicas, found.collectives) == ("no strategy", 1, ())
    assert found.state[0].layout == program.AT_HOME
    assert found.arguments[0].is_from_host


def test_how_each_variable_is_kept_is_told():
    strategy = rx.MirroredStrategy(
        [f"CPU:{i}" for i in range(4)],
        logical_devices=2,
        partition_rules=[("^cut$", jax.sharding.PartitionSpec("logical_0"))],
    )
    with strategy.scope():
        cut = rx.Variable(np.ones((4, 2), np.float32), name="cut")
        whole = rx.Variable(np.ones(3, np.float32), name="whole")
        own = rx.Variable(
            0.0, name="own", synchronization=rx.VariableSynchronization.ON_READ, aggregation=SUM
        )

    def step(x):
        own.assign_add(x.sum())
        return (cut * whole[0]).sum()

    found = inspect_step(step, (strategy.distribute_batch(ROWS),), strategy=strategy)
    kept = {one.name: (one.layout, one.num_bytes, one.device_bytes) for one in found.state}
    assert kept == {
        "cut": (program.IN_PIECES, 32, 16),
        "whole": (program.COPIED, 12, 12),
        "own": (program.OF_EACH, 4, 4),
    }
    assert found.num_devices == 4
    assert found.strategy == "MirroredStrategy, 2 replicas of 2 logical devices"


def test_parts_of_a_split_variable_have_what_fills_them_up():
    strategy = mirrored(4, sharding=rx.experimental.Sharding(stage=3))
    with strategy.scope():
        w = rx.Variable(np.ones(6, np.float32), name="w")
    batch = strategy.distribute_batch(ROWS)
    found = inspect_step(lambda x: (w * 2).sum(), (batch,), strategy=strategy)
    (kept,) = found.state
    assert (kept.layout, kept.num_bytes, kept.device_bytes) == (program.IN_PARTS, 24, 8)
    assert not kept.is_written


def test_variables_on_a_device_of_their_own_are_copied_to_the_replicas():
    strategy = central(2)
    w = dense(strategy)
    batch = strategy.distribute_batch(ROWS)
    found = inspect_step(lambda x: (w * x).sum(), (batch,), strategy=strategy)
    assert [one.layout for one in found.state] == [program.AT_HOME]
    assert found.memory.variables == 12


def test_an_optimizer_is_told_apart_from_what_it_trains():
    strategy = mirrored(2)
    w = dense(strategy)
    with strategy.scope():
        optimizer = rx.Optimizer(optax.adam(0.1))
    optimizer.build([w])

    def step(x):
        optimizer.apply_gradients([([rx.grad(lambda: (x * w).sum(), w)], [w])])

    batch = strategy.distribute_batch(ROWS)
    found = inspect_step(step, (batch,), strategy=strategy, compiles=False)
    assert sorted(one.slot_of or "" for one in found.state) == ["", "", "", "w", "w"]
    assert found.memory.slots == 2 * 12


def test_values_that_are_not_donated_are_kept_twice():
    v = rx.Variable(np.ones(1000, np.float32), name="v")
    memory = {}
    for donate in (True, False):
        step = rx.function(lambda: v.assign_add(jnp.ones(1000)), donate=donate)
        found = inspect_step(step)
        assert found.donates == donate
        planned = found.compiled.memory
        assert found.memory.total == planned.total
        memory[donate] = found.memory.total
        traced_only = inspect_step(step, compiles=False).memory.outputs
        assert traced_only == (4 if donate else 4004)  # and the number that tells its end
    assert memory[False] - memory[True] == pytest.approx(4000, abs=64)


def test_captured_arrays_are_constants_of_the_program():
    table = jnp.arange(1000.0)
    found = inspect_step(lambda x: table[x], (jnp.int32(3),))
    assert found.memory.constants == 4000
    assert found.memory.total == found.compiled.memory.total + 4000  # XLA does not count them


def test_another_program_says_why_it_was_needed():
    step = rx.function(lambda x, flag: x + 1 if flag else x)
    step(jnp.ones(3), True)
    step(jnp.ones(4), True)
    found = inspect_step(step, (jnp.ones(4), False), compiles=False)
    assert (found.num_traces, found.num_programs) == (3, 3)
    assert [reason.partition(". ")[0] for reason in found.retraces] == [
        "argument 'x' changed: array of shape (3,) and dtype float32 -> array of shape (4,) and "
        "dtype float32",
        "argument 'flag' changed: True -> False",
    ]
    assert inspect_step(rx.function(lambda: 1.0), compiles=False).retraces == ()


@jax.tree_util.register_pytree_node_class
class Row:
    """An argument of the user's own type, which looks at what it is made of."""

    def __init__(self, values):
        if values.ndim != 1:
            raise ValueError(f"{values} is no row")
        self.values = values

    def tree_flatten(self):
        return (self.values,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_arguments_of_a_type_that_takes_arrays_only_have_numbers_for_names():
    step = rx.function(lambda row: row.values.sum())
    step(Row(jnp.ones(2)))
    found = inspect_step(step, (Row(jnp.ones(3)),), compiles=False)
    assert [one.name for one in found.arguments] == ["0"]
    assert found.retraces[0].startswith("argument 0 changed: array of shape (2,)")


def test_methods_and_bound_functions_are_inspected():
    class Trainer:
        def __init__(self, strategy):
            self.w = dense(strategy)

        @rx.function
        def step(self, x):
            return (self.w * x).sum()

    strategy = mirrored(2)
    trainer, batch = Trainer(strategy), strategy.distribute_batch(ROWS)
    found = trainer.step.explain(batch, strategy=strategy).program
    assert [one.name for one in found.state] == ["w"]
    strategy.run(trainer.step, args=(batch,))
    assert trainer.step.trace_count == 1


def test_components_of_different_shapes_have_one_program_for_each():
    strategy = mirrored(3)
    w = dense(strategy)

    def step(x):
        return rx.get_replica_context().all_reduce("SUM", (x * w).sum())

    batch = strategy.distribute_batch(ROWS[:7])
    found = inspect_step(step, (batch,), strategy=strategy)
    assert [one.num_bytes for one in found.traced_collectives] == [4]
    assert {one.group_size for one in found.collectives} == {3}


def test_numbers_and_random_keys_are_arguments():
    def step(key, number):
        return jax.random.normal(key, (3,)) * number

    found = inspect_step(step, (jax.random.key(0), 2.0 + 1j))
    assert [(one.name, one.device_bytes, one.is_from_host) for one in found.arguments] == [
        ("'key'", 8, False),
        ("'number'", 8, True),
    ]
    assert found.memory.arguments == found.compiled.memory.arguments


# -- refused -----------------------------------------------------------------------------------


def test_a_strategy_is_asked_for_where_one_is_given():
    with pytest.raises(TypeError, match=re.escape("strategy is 'mirrored'; expected the strategy")):
        inspect_step(lambda: None, strategy="mirrored")
    with pytest.raises(TypeError, match="function needs a callable; got 3"):
        rx.explain(3)


def test_inside_a_step_there_is_no_program_to_explain():
    strategy = mirrored(2)

    def replica_fn():
        rx.explain(lambda: 1.0)

    with pytest.raises(ContextError, match=r"was asked for inside .*run.* whose part it would be"):
        strategy.run(replica_fn)
    with pytest.raises(ContextError, match="a program that is being traced"):
        rx.function(replica_fn)()
    with pytest.raises(ContextError, match="a program that is being traced"):
        jax.jit(replica_fn)()


def test_plain_python_has_no_program():
    rx.run_functions_eagerly(True)
    try:
        with pytest.raises(ContextError, match="has no program while functions run as plain"):
            rx.explain(lambda: 1.0)
    finally:
        rx.run_functions_eagerly(False)


def test_a_loop_over_a_dataset_is_no_single_program():
    strategy = mirrored(2)
    data = strategy.experimental_distribute_dataset([ROWS])

    @rx.function
    def epoch(data):
        for x in data:
            strategy.run(lambda x: x, args=(x,))

    def closed_over():
        epoch.python_function(data)

    for call in (lambda: epoch.explain(data), lambda: rx.explain(closed_over)):
        with pytest.raises(ContextError, match="it goes through a dataset, so it runs as Python"):
            call()


def test_the_errors_of_the_step_are_those_of_its_call():
    v = rx.Variable(1.0, name="v")
    strategy = mirrored(2)

    @rx.function(input_signature=[rx.TensorSpec((3,), jnp.float32)])
    def signed(x):
        return x

    with pytest.raises(SignatureError, match="shape"):
        signed.explain(jnp.ones(4))
    drifting = dense(strategy)

    def replica_step(x):
        drifting.assign(x.sum(0))

    with pytest.raises(ValueError, match="aggregation=NONE"):
        rx.explain(replica_step, strategy.distribute_batch(ROWS), strategy=strategy)

    def creates():
        rx.Variable(jnp.sin(v), name="again")

    with pytest.raises(TraceError, match="every time it is called"):
        rx.explain(creates)


def test_another_strategys_scope_is_in_the_way():
    with mirrored(3).scope(), pytest.raises(ContextError, match="One strategy is in force"):
        rx.explain(lambda: 1.0, strategy=mirrored(2))


class OwnRun(StrategyExtended):
    """Calls functions as it likes."""

    def run(self, fn, args, kwargs, options):
        return fn(*args, **kwargs)


def test_a_strategy_with_a_run_of_its_own_has_no_one_program_for_all_replicas():
    class OwnStrategy(rx.Strategy):
        def __init__(self):
            super().__init__(OwnRun(self))
            self.extended.set_replica_devices(["CPU:0", "CPU:1"])

    with pytest.raises(ContextError, match=r"OwnStrategy.* runs functions in a way of its own"):
        rx.explain(lambda: 1.0, strategy=OwnStrategy())
