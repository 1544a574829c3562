"""What is chosen or moved, and not computed with, arrives bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

FIRST = rx.VariableAggregation.ONLY_FIRST_REPLICA
ON_READ = rx.VariableSynchronization.ON_READ

FLOATS = ["float16", "bfloat16", "float32", "float64"]
DTYPES = [*FLOATS, "float8_e4m3fn", "complex128", "bool", "int8", "uint64"]


def patterns(dtype):
    """Values that arithmetic does not keep: -0, NaN with a payload, the smallest, the extremes."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.array([complex(-0.0, -0.0), complex(np.nan, -0.0), complex(1, np.inf)], dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        tiny = jnp.finfo(dtype).smallest_subnormal
        values = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 1.5, tiny], dtype)
        if dtype == jnp.bfloat16:  # XLA's own concatenation of them on CPUs keeps no payload
            return values
        with_payload = values[4:5].view(f"u{dtype.itemsize}") | 1
        return np.concatenate([values, with_payload.view(dtype)])
    return np.array([-2, 0, 1]).astype(dtype)


def others(dtype):
    """What the other replicas have: infinities, which a masked sum would turn into NaN."""
    values = patterns(dtype)
    return np.full(values.shape, np.inf if jnp.issubdtype(dtype, jnp.inexact) else 1).astype(dtype)


def is_exactly(result, dtype):
    result = np.asarray(result)
    assert result.dtype == dtype
    assert result.tobytes() == patterns(dtype).tobytes(), result


def per_replica(strategy, dtype):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray((others if ctx.replica_id_in_sync_group else patterns)(dtype))
    )


def merged(fn):
    return rx.get_replica_context().merge_call(lambda _: fn())


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_replicas_value_is_taken_bit_by_bit(strategy, execute, dtype):
    created = []
    with strategy.scope():
        zeros = np.zeros_like(patterns(dtype))
        written = rx.Variable(zeros, aggregation=FIRST)
        read = rx.Variable(zeros, aggregation=FIRST, synchronization=ON_READ)

    def replica_fn(x):
        if not created:
            created.append(rx.Variable(x))
        written.assign(x)
        read.assign(x)

    execute(strategy, replica_fn, args=(per_replica(strategy, dtype),))
    is_exactly(created[0].value, dtype)
    is_exactly(written.value, dtype)
    is_exactly(read.value, dtype)
    is_exactly(rx.function(lambda: read.value)(), dtype)
    for result in strategy.experimental_local_results(
        execute(strategy, lambda: merged(lambda: read.value))
    ):
        is_exactly(result, dtype)


@pytest.mark.one_worker
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("repeats", [1, 4])
def test_components_are_taken_apart_and_joined_bit_by_bit(strategy, dtype, repeats):
    values = np.stack([patterns(dtype)] * repeats)
    value = strategy.experimental_distribute_values_from_function(lambda _: jnp.asarray(values))
    with strategy.scope():
        v = rx.Variable(values, synchronization=ON_READ, aggregation=FIRST)

    def look(value):
        return strategy.experimental_local_results(value), strategy.gather(value, 0)

    for how in (look, rx.function(look)):
        components, whole = how(value)
        for component in components:
            assert np.asarray(component).tobytes() == values.tobytes()
        assert np.asarray(whole).tobytes() == values.tobytes() * strategy.num_replicas_in_sync
    for copy in rx.function(lambda: [c.value for c in strategy.experimental_local_results(v)])():
        assert np.asarray(copy).tobytes() == values.tobytes()


@pytest.mark.one_worker
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_number_of_each_replica_is_taken_apart_bit_by_bit(strategy, dtype):
    number = strategy.experimental_distribute_values_from_function(
        lambda _: jnp.asarray(-0.0, dtype)
    )
    for component in rx.function(strategy.experimental_local_results)(number):
        assert np.signbit(np.asarray(component, np.float32))
