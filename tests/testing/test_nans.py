"""`find_nan` and `nan_checked` name the variable, the replicas and the call."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import CheckError, ContextError
from replicax.testing.nans import find_nan, nan_checked
from tests.contracts.strategies import mirrored

ON_READ = rx.VariableSynchronization.ON_READ
SUM = rx.VariableAggregation.SUM


def test_nothing_is_found_where_there_is_nothing():
    strategy = mirrored(2)
    with strategy.scope():
        v = [rx.Variable(1.0), rx.Variable([1, 2])]
    assert find_nan(strategy) is None
    assert find_nan({"v": v, "text": "nan", "none": None, "number": 1.0, "bool": True}) is None


def test_a_result_names_the_replica():
    strategy = mirrored(3)
    batch = strategy.distribute_batch([1.0, 1.0, 1.0, 1.0, 1.0, -1.0])
    result = {"loss": strategy.run(rx.function(jnp.log), args=(batch,))}
    found = find_nan(result)
    assert (found.replica_ids, found.index, found.num_nan, found.size) == ((2,), (1,), 1, 2)
    assert str(found) == "the value at ['loss'] is NaN on replica 2 at [1] (1 of 2 elements)"


def test_a_sync_on_read_variable_names_the_replica():
    strategy = mirrored(3)
    with strategy.scope():
        v = rx.Variable(0.0, synchronization=ON_READ, aggregation=SUM, name="v")
    strategy.run(
        lambda x: v.assign_add(jnp.log(x).sum()).value,
        args=(strategy.distribute_batch([1.0, -1.0, -1.0]),),
    )
    assert str(find_nan(strategy)) == "variable 'v' is NaN on replicas [1, 2] (1 of 1 elements)"


def test_the_oldest_variable_is_named_first():
    strategy = mirrored(2)
    with strategy.scope():
        first, second = rx.Variable(0.0, name="first"), rx.Variable(0.0, name="second")
    second.assign(np.nan)
    assert find_nan(strategy).name == "variable 'second'"
    first.assign(np.nan)
    assert find_nan(strategy).name == "variable 'first'"
    assert find_nan(strategy).replica_ids == (0, 1)
    assert find_nan([second]).name == "variable 'second' at [0]"


def test_variables_of_the_same_name_are_told_apart():
    strategy = mirrored(2)
    with strategy.scope():
        variables = [rx.Variable(0.0, name="w") for _ in range(2)]
    variables[1].assign(np.nan)
    assert find_nan(strategy).name == "variable 'w', number 2 of that name"


def test_plain_arrays_and_numbers_have_no_replica():
    assert str(find_nan(np.array([1.0, np.nan]))) == "the value is NaN at [1] (1 of 2 elements)"
    assert find_nan((1.0, float("nan"))).replica_ids == ()
    assert find_nan(jnp.array([jnp.nan], jnp.bfloat16)).num_nan == 1


def checked_step(strategy):
    with strategy.scope():
        w = rx.Variable(1.0, name="w", aggregation=SUM)

    @rx.function
    def step(x):
        def replica_fn(x):
            logs = jnp.log(x)
            w.assign_sub(jnp.where(x > 100, jnp.nan, 0.0).sum())
            return logs

        return strategy.run(replica_fn, args=(x,))

    return nan_checked(step, strategy), w


def test_the_call_and_the_place_of_the_first_nan_are_named():
    strategy = mirrored(2)
    for batch, text in [
        (
            [1.0, np.nan],
            r"call 2 of step, in its arguments: the value at \[0\]\[0\] is NaN on repl",
        ),
        ([1.0, -1.0], r"call 2 of step, in its result: the value is NaN on replica 1 at \[0\]"),
        ([1.0, 200.0], r"call 2 of step: variable 'w' is NaN on all 2 replicas .*A reduction"),
    ]:
        step, w = checked_step(strategy)
        step(strategy.distribute_batch([1.0, 2.0]))
        with pytest.raises(CheckError, match=text):
            step(strategy.distribute_batch(np.array(batch, np.float32)))
        del w


def test_nan_from_before_is_not_blamed_on_the_step():
    strategy = mirrored(2)
    step, w = checked_step(strategy)
    w.assign(np.nan)
    with pytest.raises(CheckError, match="before call 1 of step: variable 'w'"):
        step(strategy.distribute_batch([1.0, 2.0]))


def test_inside_a_function_there_is_nothing_to_look_at():
    with pytest.raises(ContextError, match="find_nan was called inside a function"):
        rx.function(lambda x: find_nan(x))(np.ones(2))
