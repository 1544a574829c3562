"""One notice when ``run`` gives every replica a whole batch."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core import notices
from tests.contracts.strategies import mirrored

ROWS = np.ones((4, 2), np.float32)
LABELS = np.ones(4, np.float32)


def shown(call):
    notices.forget("whole batches")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
        call()
    return [str(warning.message) for warning in caught]


@pytest.fixture(params=["eager", "compiled", "whole"])
def run(request):
    strategy = mirrored(2)

    def fn(*args):
        return jnp.float32(len(args))

    ways = {
        "eager": lambda *args: strategy.run(fn, args=args),
        "compiled": lambda *args: strategy.run(rx.function(fn), args=args),
        "whole": lambda *args: rx.function(lambda: strategy.run(fn, args=args))(),
    }
    return strategy, ways[request.param]


@pytest.mark.parametrize(
    "args",
    [(ROWS, LABELS), ({"x": ROWS, "y": jnp.ones(4)},), (jnp.ones((4, 2)),)],
    ids=["arrays", "nest", "jax"],
)
def test_only_plain_arrays_of_one_size_give_a_notice(run, args):
    (message,) = shown(lambda: run[1](*args))
    assert "each of the 2 replicas the whole array of shape (4" in message
    assert "strategy.distribute_batch" in message


def test_a_host_array_beside_its_divided_batch_gives_a_notice(run):
    strategy, call = run
    batch = strategy.distribute_batch(ROWS)
    assert len(shown(lambda: call(batch, LABELS))) == 1
    uneven = strategy.distribute_batch(np.ones((5, 2), np.float32))
    assert len(shown(lambda: call(uneven, np.ones(5)))) == 1


@pytest.mark.parametrize(
    "args",
    [
        (),
        (1.0, np.float32(2.0)),
        (ROWS, 1.0),
        ({"w": np.ones((2, 3)), "b": np.ones(3)},),
        (np.ones(1),),
    ],
    ids=["nothing", "scalars", "a number too", "parameters", "one row"],
)
def test_other_plain_arguments_give_none(run, args):
    assert not shown(lambda: run[1](*args))


def test_parameters_beside_a_divided_batch_give_none(run):
    strategy, call = run
    batch = strategy.distribute_batch(ROWS)
    assert not shown(lambda: call(batch, jnp.ones((4, 3)), np.ones(3), 0.1))
    divided = strategy.distribute_batch(LABELS)
    assert not shown(lambda: call(batch, divided))


def test_one_replica_gives_none():
    assert not shown(lambda: mirrored(1).run(lambda x: x, args=(ROWS,)))
