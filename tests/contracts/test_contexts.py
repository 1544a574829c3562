"""Who am I: which strategy and which context is in force where."""

import threading

import jax.numpy as jnp
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored

DEFAULT = rx.get_strategy()


def surroundings():
    """What the four questions answer here."""
    return (
        rx.get_strategy(),
        rx.get_replica_context() is None,
        rx.in_cross_replica_context(),
        rx.has_strategy(),
    )


def in_thread(fn):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(fn()))
    thread.start()
    thread.join()
    return answers[0]


def still_works(strategy):
    total = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
    return float(total) == strategy.num_replicas_in_sync


def test_outside_every_scope_the_default_strategy_and_its_replica_context_are_in_force():
    assert surroundings() == (DEFAULT, False, False, False)
    context = rx.get_replica_context()
    assert context.strategy is DEFAULT
    assert context.replica_id_in_sync_group == 0
    assert context.num_replicas_in_sync == 1


def test_the_default_strategy_is_one_object():
    assert rx.get_strategy() is rx.get_strategy()
    assert isinstance(rx.get_strategy(), rx.DefaultStrategy)
    assert in_thread(rx.get_strategy) is DEFAULT


def test_a_scope_is_cross_replica_context(strategy):
    with strategy.scope() as entered:
        assert entered is strategy
        assert surroundings() == (strategy, True, True, strategy is not DEFAULT)
    assert surroundings() == (DEFAULT, False, False, False)


def test_a_run_is_replica_context(strategy, execute):
    seen = []
    execute(strategy, lambda: seen.append(surroundings()))
    assert set(seen) == {(strategy, False, False, strategy is not DEFAULT)}
    assert surroundings() == (DEFAULT, False, False, False)


def test_a_run_inside_the_scope_is_replica_context_too(strategy, execute):
    seen = []
    with strategy.scope():
        execute(strategy, lambda: seen.append(surroundings()))
        assert surroundings() == (strategy, True, True, strategy is not DEFAULT)
    assert set(seen) == {(strategy, False, False, strategy is not DEFAULT)}


def test_a_merge_fn_is_cross_replica_context(strategy, execute):
    seen = []

    def replica_fn():
        context = rx.get_replica_context()
        context.merge_call(lambda strategy: seen.append(surroundings()))
        assert rx.get_replica_context() is context

    execute(strategy, replica_fn)
    assert seen == [(strategy, True, True, strategy is not DEFAULT)]


def test_an_update_function_is_cross_replica_context(strategy, execute):
    seen = []
    with strategy.scope():
        variable = rx.Variable(1.0)

    def update(v):
        seen.append(surroundings())
        v.assign(2.0)

    def merge_fn(strategy):
        strategy.extended.update(variable, update)

    execute(strategy, lambda: rx.get_replica_context().merge_call(merge_fn))
    assert set(seen) == {(strategy, True, True, strategy is not DEFAULT)}
    assert variable.numpy() == 2.0


def test_an_update_from_cross_replica_context_is_cross_replica_context(strategy):
    seen = []
    with strategy.scope():
        variable = rx.Variable(1.0)
        strategy.extended.update(variable, lambda v: seen.append(surroundings()))
    assert set(seen) == {(strategy, True, True, strategy is not DEFAULT)}


def test_the_replica_context_tells_id_count_and_strategy(strategy, execute):
    seen = []

    def replica_fn():
        context = rx.get_replica_context()
        seen.append((context.num_replicas_in_sync, context.strategy))
        return context.replica_id_in_sync_group + jnp.zeros((), jnp.int32)

    ids = strategy.experimental_local_results(execute(strategy, replica_fn))
    assert [int(i) for i in ids] == list(range(strategy.num_replicas_in_sync))
    assert set(seen) == {(strategy.num_replicas_in_sync, strategy)}


def test_the_replica_context_names_the_device_of_an_eager_replica(strategy):
    seen = []
    strategy.run(lambda: seen.append(rx.get_replica_context().devices))
    assert seen == [(name,) for name in strategy.extended.worker_devices]


def test_a_new_thread_starts_outside_every_scope(strategy):
    with strategy.scope():
        assert in_thread(surroundings) == (DEFAULT, False, False, False)


def test_a_scope_of_another_thread_ends_there(strategy):
    def enter_and_leave():
        with strategy.scope():
            return surroundings()

    assert in_thread(enter_and_leave)[0] is strategy
    assert surroundings() == (DEFAULT, False, False, False)


def test_a_set_strategy_is_in_force_in_every_thread(strategy):
    rx.experimental_set_strategy(strategy)
    try:
        expected = (strategy, True, True, True)
        if strategy is DEFAULT:
            expected = (DEFAULT, False, False, False)
        assert surroundings() == expected
        assert in_thread(surroundings) == expected
        with strategy.scope():
            assert rx.get_strategy() is strategy
        assert still_works(strategy)
    finally:
        rx.experimental_set_strategy(None)
    assert surroundings() == (DEFAULT, False, False, False)


def test_the_same_scope_may_be_nested_and_entered_again(strategy):
    scope = strategy.scope()
    with scope, strategy.scope(), scope:
        assert rx.get_strategy() is strategy
    with scope:
        assert rx.in_cross_replica_context()
    assert surroundings() == (DEFAULT, False, False, False)


def test_a_scope_ends_when_its_body_raises(strategy):
    with pytest.raises(KeyError, match="mine"), strategy.scope():
        raise KeyError("mine")
    assert surroundings() == (DEFAULT, False, False, False)


@pytest.mark.parametrize("call", ["scope", "run"])
def test_another_strategys_scope_or_run_inside_a_scope_names_both(distributed, call):
    other = mirrored(4)
    with distributed.scope():
        with pytest.raises(RuntimeError, match="One strategy is in force at a time") as caught:
            enter(other, call)
        assert repr(other) in str(caught.value)
        assert repr(distributed) in str(caught.value)
        assert rx.get_strategy() is distributed
    assert still_works(distributed)
    assert still_works(other)


def enter(strategy, call):
    if call == "run":
        strategy.run(lambda: None)
    else:
        with strategy.scope():
            pass


def test_another_strategys_run_inside_a_run_names_both(distributed, execute):
    other = mirrored(4)
    with pytest.raises(RuntimeError, match="One strategy is in force at a time") as caught:
        execute(distributed, lambda: other.run(lambda: None))
    assert repr(other) in str(caught.value)
    assert repr(distributed) in str(caught.value)
    assert still_works(distributed)


def test_any_strategys_run_may_be_called_inside_the_default_strategys_run(strategy, execute):
    def outer():
        seen.append(rx.get_strategy())
        return execute(strategy, inner)

    def inner():
        seen.append(rx.get_strategy())
        return rx.get_replica_context().all_reduce("SUM", 2.0)

    seen = []
    total = DEFAULT.run(outer)
    assert float(total) == 2.0 * strategy.num_replicas_in_sync
    assert set(seen) == {DEFAULT, strategy}


@pytest.mark.parametrize("call", ["scope", "run", "reduce", "gather", "distribute_batch"])
def test_cross_replica_calls_inside_the_own_run_point_to_merge_call(distributed, execute, call):
    def replica_fn():
        if call == "reduce":
            distributed.reduce("SUM", 1.0, axis=None)
        elif call == "gather":
            distributed.gather(jnp.ones(1), axis=0)
        elif call == "distribute_batch":
            distributed.distribute_batch([1.0])
        else:
            enter(distributed, call)

    with pytest.raises(RuntimeError, match=r"in replica context.*merge_call") as caught:
        execute(distributed, replica_fn)
    assert f"Strategy.{call} was called inside strategy.run()" in str(caught.value)
    assert still_works(distributed)


def test_a_run_inside_a_merge_fn_is_refused(distributed, execute):
    def replica_fn():
        rx.get_replica_context().merge_call(lambda s: s.run(lambda: None))

    with pytest.raises(RuntimeError, match="inside the merge_fn of merge_call"):
        execute(distributed, replica_fn)
    assert still_works(distributed)


def test_setting_the_strategy_inside_a_scope_is_refused(strategy):
    with (
        strategy.scope(),
        pytest.raises(RuntimeError, match=r"experimental_set_strategy was called inside .*scope"),
    ):
        rx.experimental_set_strategy(strategy)
    assert still_works(strategy)


def test_setting_the_strategy_inside_a_run_is_refused(strategy, execute):
    with pytest.raises(RuntimeError, match=r"experimental_set_strategy was called inside .*run"):
        execute(strategy, lambda: rx.experimental_set_strategy(strategy))
    assert still_works(strategy)


STALE_USES = {
    "strategy": lambda c: c.strategy,
    "replica_id_in_sync_group": lambda c: c.replica_id_in_sync_group,
    "num_replicas_in_sync": lambda c: c.num_replicas_in_sync,
    "devices": lambda c: c.devices,
    "merge_call": lambda c: c.merge_call(lambda s: None),
    "all_reduce": lambda c: c.all_reduce("SUM", 1.0),
    "all_gather": lambda c: c.all_gather(jnp.ones(1), axis=0),
}


def test_a_replica_context_is_of_no_use_after_its_run(strategy, execute):
    kept = []
    execute(strategy, lambda: kept.append(rx.get_replica_context()))
    for context in kept:
        for name, use in STALE_USES.items():
            with pytest.raises(RuntimeError, match=f"ReplicaContext.{name} .*after its run"):
                use(context)
    assert "ended" in repr(kept[0])
    assert still_works(strategy)


def test_a_replica_context_does_not_act_inside_its_own_merge_fn(strategy, execute):
    def replica_fn():
        context = rx.get_replica_context()
        context.merge_call(lambda s: context.all_reduce("SUM", 1.0))

    with pytest.raises(RuntimeError, match="all_reduce was called inside the merge_fn"):
        execute(strategy, replica_fn)
    assert still_works(strategy)


def test_a_replica_context_made_by_hand_cannot_act(strategy):
    context = rx.ReplicaContext(strategy, replica_id_in_sync_group=0)
    assert context.replica_id_in_sync_group == 0
    with pytest.raises(RuntimeError, match=r"ReplicaContext\.all_reduce"):
        context.all_reduce("SUM", 1.0)
