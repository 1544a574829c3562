"""A value of one strategy that is passed to the run of another one."""

import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored

OTHERS = {
    "one replica": lambda: mirrored(1),
    "three replicas": lambda: mirrored(3),
    "other devices": lambda: rx.MirroredStrategy(["CPU:2", "CPU:3"]),
    "the default strategy": rx.get_strategy,
}


def total(nested):
    return nested["x"].sum()


@pytest.mark.parametrize("name", OTHERS)
def test_components_of_another_strategy_are_refused(two, execute, name):
    batch = two.distribute_batch(np.arange(4.0))
    text = (
        r"run at \[0\]\[0\]\['x'\] has a component for each replica of another strategy, on CPU:0, "
    )
    with pytest.raises(ValueError, match=text):
        execute(OTHERS[name](), total, args=({"x": batch},))


@pytest.mark.parametrize("name", OTHERS)
def test_what_another_strategy_has_mirrored_is_one_value(two, execute, name):
    batch = two.distribute_batch(np.arange(4.0))
    summed = two.run(rx.function(lambda x: rx.get_replica_context().all_reduce("SUM", x)), (batch,))
    assert isinstance(summed, rx.Mirrored)
    other = OTHERS[name]()
    results = other.experimental_local_results(execute(other, total, args=({"x": summed},)))
    assert [float(result) for result in results] == [6.0] * other.num_replicas_in_sync


def test_a_strategy_with_the_same_replicas_takes_the_components(two, execute):
    batch, other = two.distribute_batch(np.arange(4.0)), mirrored(2)
    results = other.experimental_local_results(execute(other, total, args=({"x": batch},)))
    assert [float(result) for result in results] == [1.0, 5.0]


def test_a_function_that_ran_here_refuses_components_of_another_strategy(two):
    step = rx.function(lambda x: x.sum())
    for _ in range(3):
        two.run(step, args=(two.distribute_batch(np.arange(4.0)),))
    with pytest.raises(ValueError, match="another strategy"):
        mirrored(1).run(step, args=(two.distribute_batch(np.arange(4.0)),))
