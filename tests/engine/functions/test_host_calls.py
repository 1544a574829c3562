"""Host callbacks that fail on some replicas: an error, and no device that waits for ever."""

import threading

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import HostCallbackError, LostVariableError

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def refuse_large(x):
    if x > 5:
        raise KeyError("a bad batch")
    return np.float32(x)


def pure(x):
    return jax.pure_callback(refuse_large, SCALAR, x)


def io(x):
    return jax.experimental.io_callback(refuse_large, SCALAR, x)


def debug(x):
    jax.debug.callback(refuse_large, x)
    return x


def in_a_loop(x):
    return jax.lax.fori_loop(0, 3, lambda _, total: total + pure(x), jnp.float32(0))


def of_another_shape(x):
    give = lambda x: np.zeros(2 if x > 5 else (), np.float32)  # noqa: E731
    return jax.pure_callback(give, SCALAR, x)


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])


def per_replica(strategy, first):
    return strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(first + context.replica_id_in_sync_group)
    )


def mean_variable(value):
    return rx.Variable(value, aggregation=rx.VariableAggregation.MEAN)


def step_with(call, v, **options):
    @rx.function(**options)
    def step(x):
        total = rx.get_replica_context().all_reduce("SUM", call(x))
        v.assign(v + total)
        return total

    return step


@pytest.mark.parametrize("call", [pure, io, debug, in_a_loop, of_another_shape])
def test_a_callback_that_fails_on_some_replicas_is_an_error_of_this_call(strategy, call):
    with strategy.scope():
        v = mean_variable(1.0)
    step = step_with(call, v)
    for _ in range(3):  # the third time a step would go the direct way
        strategy.run(step, args=(per_replica(strategy, 0.0),))
    with pytest.raises(HostCallbackError, match=r"the host callback .* of .*step raised") as raised:
        strategy.run(step, args=(per_replica(strategy, 4.0),))  # 6 on the last one only
    assert isinstance(raised.value.__cause__, KeyError | ValueError)
    with pytest.raises(LostVariableError, match=r"Restore it with assign"):
        v.numpy()
    v.assign(2.0)
    total = strategy.run(step, args=(per_replica(strategy, 0.0),))
    assert v.numpy() == 2.0 + float(total)


def test_variables_keep_their_values_without_donation(strategy):
    with strategy.scope():
        v = mean_variable(1.0)
    step = step_with(pure, v, donate=False)
    with pytest.raises(HostCallbackError, match="KeyError: 'a bad batch', and 2 more calls failed"):
        strategy.run(step, args=(per_replica(strategy, 6.0),))
    assert v.numpy() == 1.0


def test_what_a_callback_gives_is_as_before(strategy):
    with strategy.scope():
        v = mean_variable(0.0)
    step = step_with(lambda x: jax.pure_callback(lambda x: 2.0 * float(x), SCALAR, x), v)
    total = strategy.run(step, args=(per_replica(strategy, 0.0),))
    assert float(total) == v.numpy() == 6.0


def test_a_callback_may_read_a_variable_that_the_step_does_not_touch(strategy):
    with strategy.scope():
        v = mean_variable(0.0)
    other = rx.Variable(3.0)
    read = lambda x: np.float32(other.numpy() + x)  # noqa: E731
    step = step_with(lambda x: jax.pure_callback(read, SCALAR, x), v)
    for _ in range(5):
        total = strategy.run(step, args=(per_replica(strategy, 0.0),))
    assert float(total) == 12.0


def test_on_one_device_jax_raises_what_it_raises():
    with pytest.raises(Exception, match="a bad batch"):
        float(rx.function(pure)(jnp.float32(6)))


def test_another_thread_does_not_get_the_error(strategy):
    with strategy.scope():
        v = mean_variable(0.0)
        w = mean_variable(0.0)
    bad, good = step_with(pure, v), step_with(pure, w)
    found = []

    def train():
        found.extend(strategy.run(good, args=(per_replica(strategy, 0.0),)) for _ in range(20))

    thread = threading.Thread(target=train)
    thread.start()
    for _ in range(20):
        v.assign(0.0)
        with pytest.raises(HostCallbackError, match="a bad batch"):
            strategy.run(bad, args=(per_replica(strategy, 4.0),))
    thread.join()
    assert [float(total) for total in found] == [3.0] * 20
