"""Nothing hangs: exceptions, replicas that part ways, collectives that only some would reach."""

import gc
import threading
import time
import traceback

import jax.numpy as jnp
import pytest
from jax import lax

import replicax as rx
from tests.contracts.strategies import mirrored


class MyError(Exception):
    """An error that only a test raises."""


def replica_ids(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(ctx.replica_id_in_sync_group, jnp.float32)
    )


def assert_works(strategy, execute):
    total = execute(strategy, lambda x: rx.get_replica_context().all_reduce("SUM", x), (1.0,))
    assert float(total) == strategy.num_replicas_in_sync


def replica_threads():
    return [t for t in threading.enumerate() if t.name.startswith("replicax-replica")]


def the_users_broken_line():
    raise MyError("mine")


def test_an_exception_keeps_its_type_and_traceback(strategy, execute):
    with pytest.raises(MyError, match="mine") as caught:
        execute(strategy, lambda: the_users_broken_line())
    assert str(caught.value) == "mine"
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "the_users_broken_line" in names
    assert_works(strategy, execute)


def test_an_exception_object_arrives_unchanged(strategy, execute):
    error = MyError("mine")

    def replica_fn():
        raise error

    with pytest.raises(MyError, match="mine") as caught:
        execute(strategy, replica_fn)
    assert caught.value is error


def test_an_exception_in_merge_fn_keeps_its_type_and_traceback(strategy, execute):
    def replica_fn():
        rx.get_replica_context().merge_call(lambda s: the_users_broken_line())

    with pytest.raises(MyError, match="mine") as caught:
        execute(strategy, replica_fn)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "the_users_broken_line" in names
    assert not rx.in_cross_replica_context()
    assert_works(strategy, execute)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit])
def test_interrupts_pass_through(strategy, execute, kind):
    def replica_fn():
        raise kind("mine")

    with pytest.raises(kind, match="mine"):
        execute(strategy, replica_fn)
    assert_works(strategy, execute)


@pytest.mark.one_worker
def test_an_exception_of_one_replica_releases_the_waiting_ones(many, eager):
    ended = []

    def replica_fn():
        context = rx.get_replica_context()
        replica_id = context.replica_id_in_sync_group
        try:
            if replica_id == many.num_replicas_in_sync - 1:
                raise MyError("mine")
            context.merge_call(lambda s: None)
        finally:
            ended.append(replica_id)

    with pytest.raises(MyError, match="mine") as caught:
        eager(many, replica_fn)
    last = many.num_replicas_in_sync - 1
    assert sorted(ended) == list(range(many.num_replicas_in_sync))
    (note,) = caught.value.__notes__
    assert f"raised on replica {last}" in note
    assert "while another replica waited in merge_call" in note
    assert_works(many, eager)


@pytest.mark.one_worker
@pytest.mark.parametrize("early", ["first", "last"])
@pytest.mark.parametrize("call", ["merge_call", "all_reduce"])
def test_a_replica_that_returns_while_another_waits_is_named(many, eager, early, call):
    odd = 0 if early == "first" else many.num_replicas_in_sync - 1

    def replica_fn():
        context = rx.get_replica_context()
        if context.replica_id_in_sync_group == odd:
            return
        if call == "merge_call":
            context.merge_call(lambda s: None)
        else:
            context.all_reduce("SUM", 1.0)

    with pytest.raises(RuntimeError, match=rf"called {call} at .*test_run_failures\.py:\d+") as e:
        eager(many, replica_fn)
    assert f"replica {odd} returned without calling it" in str(e.value)
    assert f"replica {1 if odd == 0 else 0} called" in str(e.value)
    assert_works(many, eager)


@pytest.mark.one_worker
def test_replicas_that_meet_at_different_calls_are_named(many, eager):
    def replica_fn():
        context = rx.get_replica_context()
        if context.replica_id_in_sync_group == 1:
            context.all_reduce("SUM", 1.0)
        else:
            context.merge_call(lambda s: None)

    with pytest.raises(RuntimeError, match=r"replica 0 called merge_call .*replica 1 called all_r"):
        eager(many, replica_fn)
    assert_works(many, eager)


@pytest.mark.one_worker
def test_a_replica_that_catches_its_release_does_not_hang(many, eager):
    def replica_fn():
        context = rx.get_replica_context()
        if context.replica_id_in_sync_group == 1:
            raise MyError("mine")
        try:
            context.merge_call(lambda s: None)
        except BaseException:
            context.merge_call(lambda s: None)

    with pytest.raises(MyError, match="mine"):
        eager(many, replica_fn)
    assert_works(many, eager)


def test_replica_threads_are_daemons_are_reused_and_end_with_the_strategy():
    gc.collect()
    before = set(replica_threads())
    strategy = mirrored(3)
    for _ in range(3):
        strategy.run(lambda: None)
    own = [thread for thread in replica_threads() if thread not in before]
    assert len(own) == 3
    assert all(thread.daemon for thread in own)
    del strategy
    gc.collect()
    deadline = time.monotonic() + 5
    while any(thread.is_alive() for thread in own) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(thread.is_alive() for thread in own)


def test_one_replica_needs_no_thread():
    before = set(replica_threads())
    strategy = mirrored(1)
    callers = []
    strategy.run(lambda: callers.append(threading.current_thread()))
    assert callers == [threading.current_thread()]
    assert set(replica_threads()) == before


@pytest.mark.one_worker
def test_two_user_threads_may_run_at_the_same_time(strategy, execute):
    results = []

    def work():
        for _ in range(3):
            value = execute(strategy, lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
            results.append(float(value))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [float(strategy.num_replicas_in_sync)] * 6


# -- collectives that only some replicas would reach ---------------------------------------------


def all_reduced(x):
    return rx.get_replica_context().all_reduce("SUM", x)


def merged(x):
    merge_fn = lambda s, v: s.reduce("SUM", v, axis=None)  # noqa: E731
    return rx.get_replica_context().merge_call(merge_fn, args=(x,))


def under_cond(x, meet):
    return lax.cond(x > 0.5, meet, lambda x: x, x)


def under_switch(x, meet):
    return lax.switch(x.astype(jnp.int32), [lambda x: x, meet, lambda x: x], x)


def in_while_body(x, meet):
    return lax.while_loop(lambda c: c < 2.0, lambda c: meet(c) + 2.0, x)


def in_while_cond(x, meet):
    return lax.while_loop(lambda c: meet(c) + c < 2.0, lambda c: c + 1.0, x)


MEETINGS = {"all_reduce": all_reduced, "merge_call": merged}
PLACES = {f.__name__: f for f in (under_cond, under_switch, in_while_body, in_while_cond)}


@pytest.mark.parametrize("meeting", MEETINGS)
@pytest.mark.parametrize("place", PLACES)
def test_a_meeting_under_a_varying_predicate_is_refused(many, compiled, place, meeting):
    with pytest.raises(ValueError, match=r"test_run_failures\.py:\d+") as caught:
        compiled(many, lambda x: PLACES[place](x, MEETINGS[meeting]), args=(replica_ids(many),))
    line = MEETINGS[meeting].__code__.co_firstlineno
    lines = [f"test_run_failures.py:{line + offset}" for offset in (1, 2)]
    assert any(text in str(caught.value) for text in lines)
    assert_works(many, compiled)


def test_an_aggregated_assign_under_a_varying_predicate_is_refused(many, compiled):
    with many.scope():
        variable = rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM)

    def replica_fn(x):
        def write(x):
            variable.assign_add(x)
            return x

        return lax.cond(x > 0.5, write, lambda x: x, x)

    with pytest.raises(ValueError, match=r"test_run_failures\.py:\d+"):
        compiled(many, replica_fn, args=(replica_ids(many),))
    assert float(variable.read_value()) == 1.0
    assert_works(many, compiled)


def test_a_meeting_under_a_predicate_of_the_replica_id_is_refused(many, compiled):
    def replica_fn(x):
        first = rx.get_replica_context().replica_id_in_sync_group == 0
        return lax.cond(first, all_reduced, lambda x: x, x)

    with pytest.raises(ValueError, match=r"test_run_failures\.py:\d+"):
        compiled(many, replica_fn, args=(jnp.ones(()),))
    assert_works(many, compiled)


def test_meetings_under_an_equal_predicate_are_fine(strategy, compiled):
    def replica_fn(x):
        total = all_reduced(x) * 0.0 + 1.0
        return [place(total, all_reduced) + x * 0 for place in PLACES.values()]

    for result in compiled(strategy, replica_fn, args=(replica_ids(strategy),)):
        assert len(strategy.experimental_local_results(result)) == strategy.num_replicas_in_sync


def test_a_users_psum_under_a_varying_predicate_is_refused(many, compiled):
    def replica_fn(x):
        return lax.cond(x > 0.5, lambda x: lax.psum(x, rx.REPLICA_AXIS), lambda x: x, x)

    with pytest.raises(ValueError, match=r"test_run_failures\.py:\d+"):
        compiled(many, replica_fn, args=(replica_ids(many),))
    assert_works(many, compiled)


def test_a_branch_on_the_replica_id_around_a_meeting_is_refused_when_compiled(
    many, compiled, branch_notice
):
    def replica_fn(x):
        if rx.get_replica_context().replica_id_in_sync_group == 0:
            return all_reduced(x)
        return x

    with (
        pytest.warns(rx.ReplicaxWarning, match="branches on the replica id"),
        pytest.raises(ValueError, match=r"test_run_failures\.py:\d+"),
    ):
        compiled(many, replica_fn, args=(jnp.ones(()),))
    assert_works(many, compiled)
