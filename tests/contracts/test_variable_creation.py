"""Creating variables: in scope, in run, from functions and traced values, seen by creators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored, num_copies

SUM = rx.VariableAggregation.SUM
ON_READ = rx.VariableSynchronization.ON_READ


def discard(_):
    """Makes a lambda return None."""


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def copies(strategy, v):
    return [np.asarray(copy) for copy in strategy.experimental_local_results(v)]


class Layer:
    """Creates its variable the first time it is called, as layers do."""

    def __init__(self, initial_value, **options):
        self.v = None
        self.traces = 0
        self.initial_value = initial_value
        self.options = options

    def __call__(self, x):
        self.traces += 1
        if self.v is None:
            self.v = rx.Variable(self.initial_value(), **self.options)
        self.v.assign_add(x)
        return self.v + 0


def test_the_strategy_in_scope_creates_the_variable(strategy):
    with strategy.scope():
        v = rx.Variable([1.0, 2.0], name="w")
    assert len(copies(strategy, v)) == num_copies(strategy)
    assert len(v.devices()) == len(strategy.extended.parameter_devices)
    assert strategy.extended.variable_created_in_scope(v) == (v.strategy is not None)
    outside = rx.Variable(1.0)
    assert not isinstance(outside, rx.DistributedValues)
    assert outside.strategy is None


INITIAL_VALUES = {
    "a float": (1.5, jnp.float32, 1.5),
    "an int": (3, jnp.int32, 3),
    "a bool": (True, jnp.bool_, True),
    "a list": ([[1, 2]], jnp.int32, [[1, 2]]),
    "a list of arrays": ([jnp.float32(1), jnp.float32(2)], jnp.float32, [1, 2]),
    "numpy float64": (np.float64(2.5), jnp.float32, 2.5),
    "a weakly typed array": (jnp.asarray(1.0), jnp.float32, 1.0),
    "a function": (lambda: jnp.ones((2,), jnp.bfloat16), jnp.bfloat16, [1, 1]),
    "a function of a number": (lambda: 4, jnp.int32, 4),
    "another variable": (lambda: rx.Variable(7.0), jnp.float32, 7.0),
}


@pytest.mark.parametrize("case", INITIAL_VALUES)
def test_initial_values_get_a_strong_type(strategy, case):
    initial_value, dtype, expected = INITIAL_VALUES[case]
    with strategy.scope():
        v = rx.Variable(initial_value)
    assert v.dtype == dtype
    assert v.value.dtype == dtype
    assert not v.value.weak_type
    assert not rx.function(lambda: v.read_value())().weak_type
    np.testing.assert_array_equal(np.asarray(v.value, np.float32), expected)


def test_the_dtype_argument_wins(strategy):
    with strategy.scope():
        v = rx.Variable([1, 2], dtype=jnp.float16)
        w = rx.Variable(lambda: 1, dtype="float32")
    assert v.dtype == v.value.dtype == jnp.float16
    assert w.dtype == jnp.float32


def test_created_in_run_is_one_variable_and_replica_zero_wins(strategy, execute):
    layer = Layer(lambda: jnp.float32(10) * (replica_id() + 1), aggregation=SUM)
    n = strategy.num_replicas_in_sync
    step = execute.prepare(strategy, layer)
    seen = [step(1.0) for _ in range(3)]
    assert isinstance(layer.v, rx.Variable)
    assert [float(c) for c in copies(strategy, layer.v)] == [10 + 3 * n] * num_copies(strategy)
    for count, values in enumerate(seen, 1):
        for value in strategy.experimental_local_results(values):
            assert float(value) == 10 + count * n
    if execute.is_compiled:
        assert layer.traces == 2  # once more, because the first trace created a variable
    if n > 1:
        assert layer.v.strategy is strategy


@pytest.mark.parametrize("kind", ["a number", "a captured array", "a function", "numpy"])
def test_concrete_initial_values_in_run(many, execute, kind):
    captured = jnp.asarray([1.0, 2.0])
    initial = {
        "a number": lambda: 3.0,
        "a captured array": lambda: captured,
        "a function": lambda: lambda: jnp.ones(2) * 2,
        "numpy": lambda: np.ones(2, np.float32),
    }[kind]
    expected = {"a number": 3, "a captured array": [1, 2], "a function": [2, 2], "numpy": [1, 1]}
    layer = Layer(initial, aggregation=SUM)
    step = execute.prepare(many, layer)
    step(jnp.zeros(np.shape(expected[kind])))
    step(jnp.zeros(np.shape(expected[kind])))
    for copy in copies(many, layer.v):
        np.testing.assert_array_equal(copy, np.asarray(expected[kind], np.float32))
    np.testing.assert_array_equal(captured, [1, 2])


def test_traced_initial_values_depend_on_arguments_and_variables(many, execute):
    with many.scope():
        scale = rx.Variable(2.0)
    layers = [Layer(None, aggregation=SUM), Layer(None, synchronization=ON_READ, aggregation=SUM)]

    def step(x):
        for layer in layers:
            layer.initial_value = lambda: jnp.sum(x) * scale
            layer(0.0)

    batch = many.distribute_batch(np.arange(1.0, 1.0 + 2 * many.num_replicas_in_sync))
    run = execute.prepare(many, step)
    run(batch)
    run(batch)
    for layer, count in zip(layers, (num_copies(many), many.num_replicas_in_sync), strict=True):
        assert [float(c) for c in copies(many, layer.v)] == [6.0] * count


def test_sync_on_read_created_in_run(many, execute):
    layer = Layer(lambda: jnp.float32(replica_id()) + 1, synchronization=ON_READ, aggregation=SUM)
    step = execute.prepare(many, lambda: discard(layer(replica_id() * 1.0)))
    step()
    step()
    n = many.num_replicas_in_sync
    assert [float(c) for c in copies(many, layer.v)] == [1 + 2.0 * i for i in range(n)]


def test_created_in_a_function_outside_run(strategy):
    layer = Layer(lambda: jnp.arange(2.0), aggregation=SUM)

    @rx.function
    def outer(x):
        return layer(x)

    with strategy.scope():
        outer(jnp.ones(2))
        np.testing.assert_allclose(outer(jnp.ones(2)), [2, 3])
    for copy in copies(strategy, layer.v):
        np.testing.assert_allclose(copy, [2, 3])
    assert len(copies(strategy, layer.v)) == num_copies(strategy)


def test_creating_on_every_compiled_call_is_an_error(strategy, compiled):
    def step():
        v = rx.Variable(1.0, name="again")
        return v + 1

    with pytest.raises(ValueError, match=r"creates variables \['again'\] every time.*Create them"):
        compiled(strategy, step)
    result = strategy.run(step)  # eager: a new variable each time, as Python says
    assert {float(x) for x in strategy.experimental_local_results(result)} == {2.0}


def test_creation_inside_scan_needs_a_function(two):
    def body(carry, _):
        rx.Variable(carry, name="inner")
        return carry, None

    def step():
        return jax.lax.scan(body, jnp.float32(0), None, length=2)[0]

    with pytest.raises(ValueError, match=r"'inner' is created inside jax\.jit, lax\.scan"):
        two.run(rx.function(step))
    with pytest.raises(RuntimeError, match=r"creation of a variable was reached inside jax\.jit"):
        two.run(step)


def test_creators_are_called_innermost_first_and_once_per_variable(strategy):
    calls = []

    def creator(label):
        def create(next_creator, **kwargs):
            calls.append((label, kwargs["name"]))
            kwargs["initial_value"] = kwargs["initial_value"] + 1.0
            v = next_creator(**kwargs)
            calls.append((f"end {label}", v.name))
            return v

        return create

    with (
        strategy.scope(),
        rx.variable_creator_scope(creator("outer")),
        rx.variable_creator_scope(creator("inner")),
    ):
        v = rx.Variable(1.0, name="a")
    assert calls == [("inner", "a"), ("outer", "a"), ("end outer", "a"), ("end inner", "a")]
    assert float(v) == 3
    rx.Variable(1.0)
    assert len(calls) == 4


def test_creators_see_a_creation_in_run_once(strategy, execute):
    calls = []

    def create(next_creator, **kwargs):
        calls.append((kwargs["name"], kwargs["aggregation"], rx.in_cross_replica_context()))
        return next_creator(**kwargs)

    layer = Layer(lambda: 1.0, name="in run", aggregation=SUM)
    with rx.variable_creator_scope(create):
        step = execute.prepare(strategy, layer)
        step(1.0)
        step(1.0)
    assert calls == [("in run", SUM, True)]


def test_a_creator_may_replace_the_variable(strategy):
    with strategy.scope():
        mine = rx.Variable(5.0)
    with strategy.scope(), rx.variable_creator_scope(lambda next_creator, **kwargs: mine):
        assert rx.Variable(1.0) is mine


def test_creators_get_every_argument(two):
    seen = {}

    def create(next_creator, **kwargs):
        seen.update(kwargs)
        return next_creator(**kwargs)

    with two.scope(), rx.variable_creator_scope(create):
        rx.Variable(1.0, False, name="w", dtype=jnp.float16, synchronization=ON_READ)
    assert seen == {
        "initial_value": 1.0,
        "trainable": False,
        "name": "w",
        "dtype": jnp.float16,
        "synchronization": ON_READ,
        "aggregation": rx.VariableAggregation.NONE,
    }


def test_a_creator_scope_ends_when_its_body_raises():
    calls = []
    with (
        pytest.raises(KeyError, match="boom"),
        rx.variable_creator_scope(lambda next_creator, **kwargs: calls.append(1)),
    ):
        raise KeyError("boom")
    assert float(rx.Variable(1.0)) == 1
    assert not calls


def test_a_failed_creation_in_run_leaves_the_strategy_working(many, execute):
    def step():
        rx.Variable(1, name="counts", aggregation=rx.VariableAggregation.MEAN)

    with pytest.raises(ValueError, match="'counts' has aggregation=MEAN and dtype int32"):
        execute(many, step)
    layer = Layer(lambda: 1.0, aggregation=SUM)
    execute(many, layer, (1.0,))
    assert float(layer.v) == 1 + many.num_replicas_in_sync


def test_two_strategies_create_side_by_side():
    first, second = mirrored(2), mirrored(3)
    with first.scope():
        a = rx.Variable(1.0)
    with second.scope():
        b = rx.Variable(2.0)
    assert (a.strategy, b.strategy) == (first, second)
    assert float(a + b) == 3  # outside both scopes both may be read


def test_a_callable_initial_value_may_read_another_variable(distributed, execute):
    with distributed.scope():
        first = rx.Variable([1.0, 2.0])
    made = []

    def replica_fn():
        if not made:
            made.append(rx.Variable(lambda: first * 2))
        return made[0] + 1

    execute(distributed, replica_fn)
    np.testing.assert_array_equal(made[0].numpy(), [2.0, 4.0])


def test_an_initial_value_computed_in_a_run_keeps_its_bits(many, compiled):
    made = []

    def replica_fn(x):
        if not made:
            made.append(rx.Variable(jnp.stack([x * -0.0, jnp.where(x >= 0, jnp.nan, x)])))
        return made[0] + 0

    compiled(many, replica_fn, args=(jnp.float32(1.0),))
    zero, nan = made[0].numpy()
    assert np.signbit(zero)
    assert np.isnan(nan)


def test_a_variable_without_a_strategy_is_a_variable_and_nothing_else():
    assert type(rx.Variable(1.0)) is rx.Variable
    assert rx.Variable(1.0).strategy is None
