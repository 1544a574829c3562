"""64-bit values made while 64-bit types were on, used while they are off: refused, never cut."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core import notices

SUM = rx.VariableAggregation.SUM
ON_READ = rx.VariableSynchronization.ON_READ
VALUES = {"int64": 2**40 + 5, "uint64": 2**63, "float64": 1 / 3, "complex128": 1 / 3 + 1j}

USES = {
    "a read": lambda v: v.value,
    "a conversion": lambda v: v.numpy(),
    "an operator": lambda v: v + v,
    "a read in a function": lambda v: rx.function(lambda: v.value)(),
    "an assignment": lambda v: v.assign(np.ones(3, v.dtype)),
}
USES_IN_RUN = {
    "a read": lambda v: v.value,
    "an assignment": lambda v: v.assign(np.ones(3, v.dtype)),
    "an addition": lambda v: v.assign_add(np.ones(3, v.dtype)),
}


@pytest.fixture(params=VALUES)
def wide(request):
    return np.full(3, VALUES[request.param], request.param)


@pytest.fixture(params=["AUTO", "ON_READ"])
def make(request):
    synchronization = rx.VariableSynchronization[request.param]

    def variable(strategy, value):
        with jax.enable_x64(True), strategy.scope():
            return rx.Variable(value, name="w", aggregation=SUM, synchronization=synchronization)

    return variable


def test_a_wide_variable_is_refused_while_wide_types_are_off(strategy, make, wide):
    v = make(strategy, wide)
    with jax.enable_x64(True):
        before = v.numpy()
    for use in USES.values():
        with pytest.raises(ValueError, match=r"variable 'w', which has dtype .*64.*jax_enable_x64"):
            use(v)
    with jax.enable_x64(True):
        assert v.numpy().dtype == wide.dtype
        np.testing.assert_array_equal(v.numpy(), before)


def test_a_wide_variable_is_refused_in_a_run_while_wide_types_are_off(
    strategy, execute, make, wide
):
    v = make(strategy, wide)
    with jax.enable_x64(True):
        before = v.numpy()
    for use in USES_IN_RUN.values():
        with pytest.raises(ValueError, match=r"variable 'w', which has dtype .*64.*jax_enable_x64"):
            execute(strategy, lambda use=use: use(v))
    with jax.enable_x64(True):
        np.testing.assert_array_equal(v.numpy(), before)


def test_a_step_on_a_wide_variable_notices_that_wide_types_are_off(strategy, execute, make):
    v = make(strategy, np.full(3, 2**40))
    if v.aggregation is SUM and v.synchronization is ON_READ:
        expected = (2**40 + 3) * strategy.num_replicas_in_sync
    else:
        expected = 2**40 + 3 * strategy.num_replicas_in_sync
    step = execute.prepare(strategy, lambda: v.assign_add(np.ones(3, np.int64)))
    with jax.enable_x64(True):
        for _ in range(3):
            step()
    with pytest.raises(ValueError, match=r"assign_add of variable 'w'.*dtype int64.*64-bit types"):
        step()
    with jax.enable_x64(True):
        assert v.numpy().tolist() == [expected] * 3


def wide_values(strategy, wide):
    with jax.enable_x64(True):
        array = jnp.asarray(wide)
        yield array
        yield strategy.experimental_distribute_values_from_function(lambda _: array)
        yield strategy.distribute_batch(np.concatenate([wide] * strategy.num_replicas_in_sync))
        yield strategy.run(lambda: array + 0)
        yield strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", array))


def test_wide_values_are_refused_while_wide_types_are_off(strategy, execute, wide):
    for value in list(wide_values(strategy, wide)):
        for use in (
            lambda value: execute(strategy, lambda x: x + 1, args=(value,)),
            lambda value: strategy.reduce("SUM", value, axis=None),
            lambda value: strategy.reduce("MEAN", value, axis=0),
            lambda value: strategy.gather(value, axis=0),
            lambda value: strategy.extended.reduce_to("SUM", value, "CPU:0"),
        ):
            with pytest.raises(ValueError, match=r"has dtype .*64-bit types.*jax_enable_x64"):
                use(value)


def test_a_wide_value_is_no_initial_value_and_no_broadcast_while_wide_types_are_off(strategy, wide):
    with jax.enable_x64(True):
        array = jnp.asarray(wide)
    with pytest.raises(ValueError, match=r"initial value of variable 'w' has dtype .*jax_enable_x"):
        rx.Variable(array, name="w")
    with pytest.raises(ValueError, match=r"broadcast_to has dtype .*jax_enable_x64"):
        strategy.extended.broadcast_to(array, "CPU:0")


def test_a_variable_with_fewer_bits_than_asked_for_says_so_once(strategy):
    notices.forget(("fewer bits", np.dtype(np.int64)))
    message = r"variable 'step' of dtype int64 holds int32.*jax_enable_x64"
    with strategy.scope(), pytest.warns(rx.ReplicaxWarning, match=message) as shown:
        rx.Variable(0, dtype=np.int64, name="step")
        rx.Variable(0, dtype="int64", name="other")
    assert len(shown) == 1
    with strategy.scope(), jax.enable_x64(True):
        assert rx.Variable(0, dtype=np.int64).dtype == np.int64
