"""`check_mirrored` finds a copy that differs; the registry knows every live variable."""

import gc

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import CheckError, ContextError
from replicax.testing.mirrored import check_mirrored
from replicax.variables.registry import live_variables
from tests.contracts.strategies import central, mirrored


def corrupt(variable, copy_id, value):
    """Writes one copy, past every rule."""
    storage = variable._storage
    copies = [np.asarray(copy) for copy in storage.components()]
    copies[copy_id] = np.asarray(value, storage.dtype)
    storage.set_components(copies)


def test_a_corrupted_copy_is_named_with_the_difference():
    strategy = mirrored(3)
    with strategy.scope():
        good, bad = rx.Variable(1.0, name="good"), rx.Variable([1.0, 2.0], name="bad")
    corrupt(bad, 2, [1.0, 2.5])
    text = (
        r"variable 'bad': copy 2 on CPU:2 differs from copy 0 on CPU:0 by up to 0\.5 at \[1\]: "
        r"2\.5 instead of 2\.0; 1 of 2 elements differ"
    )
    with pytest.raises(CheckError, match=text) as caught:
        check_mirrored(strategy)
    assert "good" not in str(caught.value)
    assert check_mirrored(strategy, [good]).names == ("good",)
    with pytest.raises(AssertionError, match="'bad'"):
        check_mirrored(strategy, {"b": bad})


def test_nan_in_one_copy_is_a_difference_and_in_all_is_none():
    strategy = mirrored(2)
    with strategy.scope():
        v = rx.Variable(np.nan, name="v")
    assert check_mirrored(strategy).names == ("v",)
    corrupt(v, 1, 1.0)
    with pytest.raises(CheckError, match=r"1\.0 instead of nan"):
        check_mirrored(strategy)


@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "uint32", "bool", "complex64"])
def test_every_dtype_can_be_compared(dtype):
    strategy = mirrored(2)
    with strategy.scope():
        v = rx.Variable(np.zeros(2), dtype=dtype, name="v")
    check_mirrored(strategy)
    corrupt(v, 1, [0, 1])
    with pytest.raises(CheckError, match=r"by up to 1 at \[1\]"):
        check_mirrored(strategy)


def test_variables_that_are_not_mirrored_are_left_out():
    strategy = mirrored(2)
    with strategy.scope():
        local = rx.Variable(0.0, synchronization=rx.VariableSynchronization.ON_READ, name="local")
    strategy.run(
        lambda: local.assign(rx.get_replica_context().replica_id_in_sync_group + 0.0).value
    )
    assert check_mirrored(strategy).names == ()
    assert repr(check_mirrored(strategy)).endswith("on 2 replicas, variables: none>")
    stored_once = central(2)
    with stored_once.scope():
        v = rx.Variable(1.0, name="v")
    assert check_mirrored(stored_once).names == ("v",)
    assert float(v) == 1.0


def test_a_trained_model_passes():
    strategy = mirrored(8)
    with strategy.scope():
        w = rx.Variable(np.ones(5), name="w", aggregation=rx.VariableAggregation.MEAN)
    step = rx.function(lambda x: w.assign_sub(0.1 * x.sum() * w.value).value)
    for _ in range(3):
        strategy.run(step, args=(strategy.distribute_batch(np.arange(11.0, dtype=np.float32)),))
    assert repr(check_mirrored(strategy)) == (
        "<MirroredReport: equal copies on 8 replicas, variables: w>"
    )


def test_wrong_use_is_explained():
    strategy, other = mirrored(2), mirrored(2)
    with other.scope():
        v = rx.Variable(1.0)
    with pytest.raises(ValueError, match="which is no variable of"):
        check_mirrored(strategy, v)
    with pytest.raises(ContextError, match="check_mirrored was called inside a function"):
        rx.function(lambda: check_mirrored(strategy))()


def test_the_registry_is_in_order_of_creation_and_holds_nothing():
    strategy = mirrored(2)
    names = ["z", "a", "m"]
    with strategy.scope():
        variables = [rx.Variable(1.0, name=name) for name in names]
    assert [v.name for v in live_variables(strategy)] == names
    del variables[1]
    gc.collect()
    assert [v.name for v in live_variables(strategy)] == ["z", "m"]
    assert live_variables(mirrored(2)) == []


def test_the_registry_knows_what_a_compiled_step_created_once():
    strategy = mirrored(3)
    made = []

    @rx.function
    def step(x):
        if not made:
            made.append(rx.Variable(lambda: jax.numpy.zeros(2), name="made"))
        return x

    strategy.run(step, args=(strategy.distribute_batch([1.0, 2.0, 3.0, 4.0]),))  # two shapes
    assert [v.name for v in live_variables(strategy)] == ["made"]
