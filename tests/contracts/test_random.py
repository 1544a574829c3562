"""random.Generator: keys by context, equal in both executors, state in a variable."""

import jax
import numpy as np
import pytest

import replicax as rx
from tests.contracts.executors import EXECUTORS


def generator(strategy, seed=7):
    with strategy.scope():
        return rx.random.Generator(seed)


def data(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def draw(strategy, execute, fn):
    """What each replica drew, as hashable key data."""
    result = execute(strategy, lambda: jax.tree.map(jax.random.key_data, fn()))
    parts = strategy.experimental_local_results(result)
    return [jax.tree.map(lambda x: tuple(np.asarray(x).tolist()), part) for part in parts]


def test_next_key_is_the_same_on_all_replicas_and_new_each_time(strategy, execute):
    source = generator(strategy)
    seen = draw(strategy, execute, lambda: [source.next_key(), source.next_key()])
    assert len({str(part) for part in seen}) == 1
    assert seen[0][0] != seen[0][1]
    assert int(source.state) == 2


def test_next_replica_key_differs_between_replicas_and_steps(strategy, execute):
    source = generator(strategy)

    def step():
        return [source.next_replica_key(), source.next_replica_key(), source.next_key()]

    n = strategy.num_replicas_in_sync
    seen = draw(strategy, execute, step)
    own = {key for part in seen for key in part[:2]}
    assert len(own) == 2 * n
    assert len({part[2] for part in seen}) == 1
    assert seen[0][2] not in own
    assert int(source.state) == 3


def test_both_executors_give_equal_keys(strategy):
    def keys(execute):
        source = generator(strategy)

        def step():
            return [source.next_key(), source.next_replica_key()]

        return [draw(strategy, execute, step), draw(strategy, execute, step)]

    eager = keys(EXECUTORS["eager"])
    assert keys(EXECUTORS["compiled"]) == eager
    assert keys(EXECUTORS["inside"]) == eager
    assert eager[0] != eager[1]


def test_next_key_does_not_depend_on_the_number_of_replicas(strategy, execute):
    source = generator(strategy)
    alone = rx.random.Generator(7)
    assert draw(strategy, execute, source.next_key)[0] == data(alone.next_key())
    assert draw(strategy, execute, source.next_key)[0] == data(alone.next_key())


def test_keys_across_replicas(strategy):
    source = generator(strategy)
    reference = rx.random.Generator(7)
    expected = [data(reference.next_key()) for _ in range(4)]
    with strategy.scope():
        assert data(source.next_key()) == expected[0]
    assert data(source.next_key()) == expected[1]
    assert data(rx.function(source.next_key)()) == expected[2]
    merged = strategy.run(lambda: rx.get_replica_context().merge_call(lambda _: source.next_key()))
    assert data(strategy.experimental_local_results(merged)[0]) == expected[3]


def test_next_replica_key_across_replicas_is_refused(strategy):
    source = generator(strategy)
    with (
        strategy.scope(),
        pytest.raises(RuntimeError, match=r"next_replica_key was called inside.*call next_key"),
    ):
        source.next_replica_key()
    assert int(source.state) == 0


def test_the_state_is_a_variable_that_can_be_restored(two, execute):
    strategy = two
    source = generator(strategy)
    assert isinstance(source.state, rx.Variable)
    assert not source.state.trainable
    first = draw(strategy, execute, source.next_replica_key)
    saved = source.state.numpy()
    second = draw(strategy, execute, source.next_replica_key)
    source.state.assign(saved)
    assert draw(strategy, execute, source.next_replica_key) == second
    source.state.assign(0)
    assert draw(strategy, execute, source.next_replica_key) == first


def test_seeds_give_different_keys(strategy):
    keys = {data(generator(strategy, seed).next_key()) for seed in (0, 1, 2, 12345)}
    assert len(keys) == 4


def test_keys_advance_inside_scan_in_a_compiled_run(two, compiled):
    strategy = two
    source = generator(strategy)

    def step():
        body = lambda carry, _: (carry, jax.random.key_data(source.next_replica_key()))  # noqa: E731
        return jax.lax.scan(body, 0, None, length=3)[1]

    n = strategy.num_replicas_in_sync
    parts = strategy.experimental_local_results(compiled(strategy, step))
    assert len({tuple(row) for part in parts for row in np.asarray(part).tolist()}) == 3 * n
    assert int(source.state) == 3
