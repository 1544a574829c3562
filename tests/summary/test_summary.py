"""Summaries: what is written from where, once per step, and that no step waits for it."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.backend import runahead
from replicax.core.errors import ContextError, TraceError
from replicax.core.notices import ReplicaxWarning
from replicax.summary import writer as writers
from tests.contracts.fixtures import each_of
from tests.contracts.strategies import STRATEGIES
from tests.summary.event_files import histogram, scalars, values

strategy = each_of(STRATEGIES)
BATCH = np.arange(12, dtype=np.float32)


@pytest.fixture(autouse=True)
def no_step():
    yield
    rx.summary.set_step(None)


@pytest.fixture
def writer(tmp_path):
    made = rx.summary.create_file_writer(tmp_path)
    yield made
    made.close()


WRAPS = {"eager": lambda fn: fn, "compiled": rx.function}


@pytest.mark.parametrize("how", WRAPS)
def test_a_scalar_in_a_replica_is_the_mean_of_all_and_written_once(strategy, how, writer, tmp_path):
    step = WRAPS[how](lambda x: rx.summary.scalar("mean", x.mean()))
    batch = strategy.distribute_batch(BATCH)
    with writer.as_default():
        for number in range(3):
            rx.summary.set_step(10 * number)
            strategy.run(step, args=(batch,))
    assert scalars(tmp_path, "mean") == [(0, 5.5), (10, 5.5), (20, 5.5)]


@pytest.mark.parametrize("how", WRAPS)
def test_a_histogram_and_pictures_are_of_all_replicas(how, writer, tmp_path):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])

    def fn(x):
        rx.summary.histogram("x", x, buckets=4)
        rx.summary.image("pictures", jnp.broadcast_to(x[:, None, None, None] / 12, (4, 2, 2, 1)))

    with writer.as_default(step=1):
        strategy.run(WRAPS[how](fn), args=(strategy.distribute_batch(BATCH),))
    ((at, value),) = values(tmp_path, "x")
    assert at == 1
    assert histogram(value)[1].sum() == 12
    assert (value.histo.min, value.histo.max, value.histo.sum) == (0.0, 11.0, 66.0)
    pictures = values(tmp_path, "pictures")
    assert [value.tag for _, value in pictures] == [f"pictures/{number}" for number in range(3)]
    assert {(v.image.height, v.image.width) for _, v in pictures} == {(2, 2)}


def test_a_variable_gives_the_step_and_gradients_are_no_hindrance(writer, tmp_path):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = rx.Variable(1.0)
        count = rx.Variable(0, aggregation=rx.VariableAggregation.ONLY_FIRST_REPLICA)

    def step(x):
        count.assign_add(1)

        def loss_fn():
            loss = (w * x).mean()
            rx.summary.scalar("inside", loss, step=count)
            return loss

        return rx.grad(loss_fn, w)

    compiled = rx.function(step)
    with writer.as_default():
        for fn in (step, compiled, compiled, step):
            gradient = strategy.run(fn, args=(strategy.distribute_batch(BATCH),))
            np.testing.assert_allclose([float(g) for g in gradient.values], [2.5, 8.5])
    assert scalars(tmp_path, "inside") == [(1, 5.5), (2, 5.5), (3, 5.5), (4, 5.5)]


def test_a_function_around_run_records_results_and_reductions(writer, tmp_path):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

    @rx.function
    def step(x):
        per_replica = strategy.run(lambda x: x.sum(), args=(x,))
        total = strategy.reduce("SUM", per_replica, axis=None)
        rx.summary.scalar("total", total)
        rx.summary.scalar("mean of replicas", per_replica)
        return total

    with writer.as_default(step=3):
        for _ in range(3):
            assert step(strategy.distribute_batch(BATCH)) == 66.0
    assert scalars(tmp_path, "total") == [(3, 66.0)] * 3
    assert scalars(tmp_path, "mean of replicas") == [(3, 33.0)] * 3


def test_a_compiled_step_serves_the_writer_and_the_condition_of_each_launch(tmp_path):
    step = rx.function(lambda x: rx.summary.scalar("x", x))
    one, other = (rx.summary.create_file_writer(tmp_path / name) for name in ("one", "other"))
    step(1.0)  # nobody writes
    with one.as_default(step=1):
        step(2.0)
        with rx.summary.record_if(False):
            assert not rx.summary.should_record_summaries()
            step(3.0)
        with rx.summary.record_if(lambda: True):
            step(4.0)
        with other.as_default(step=2):
            step(5.0)
        rx.summary.flush()
        assert rx.summary.get_step() == 1
    assert step.trace_count == 1
    one.close()
    other.close()
    assert scalars(tmp_path / "one", "x") == [(1, 2.0), (1, 4.0)]
    assert scalars(tmp_path / "other", "x") == [(2, 5.0)]


def test_no_step_waits_for_a_summary(writer, tmp_path, monkeypatch):
    """Counts the waits: those of the engine, and who fetches values."""
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    fetchers, waits = set(), []
    fetch, wait = writers._fetched, runahead._await
    is_open = threading.Event()

    def fetched(value):
        fetchers.add(threading.current_thread().name)
        is_open.wait()
        return fetch(value)

    monkeypatch.setattr(writers, "_fetched", fetched)
    monkeypatch.setattr(runahead, "_await", lambda token: (waits.append(token), wait(token)))
    batch = strategy.distribute_batch(BATCH)

    def waits_of(fn, count):
        step = rx.function(fn)
        strategy.run(step, args=(batch,))
        jax.block_until_ready(strategy.run(step, args=(batch,)).values)
        runahead.RUN_AHEAD.wait()
        waits.clear()
        for _ in range(count):
            strategy.run(step, args=(batch,))
        return len(waits)

    def without(x):
        return x.mean()

    def recording(x):
        rx.summary.scalar("mean", x.mean(), step=1)
        return x.mean()

    with writer.as_default():
        few = runahead.MAX_IN_FLIGHT - 1  # more launches must wait for earlier ones in any case
        assert waits_of(without, few) == waits_of(recording, few) == 0
        assert waits_of(recording, 50) <= waits_of(without, 50) + 1
        # Not one value has been fetched, and all steps have been launched.
        assert fetchers <= {"replicax-summary"}
        is_open.set()
    assert len(scalars(tmp_path, "mean")) == 2 + few + 2 + 50


def test_text_and_numbers_from_the_host(writer, tmp_path):
    with writer.as_default(step=4):
        rx.summary.text("setup", "**bold**")
        rx.summary.scalar("python", 3)
        rx.summary.scalar("numpy", np.float32(0.5), step=np.int64(9))
        rx.summary.histogram("nothing", np.zeros(0))
        rx.summary.histogram("not a number", np.array([1.0, np.nan, np.inf]))
    ((step, value),) = values(tmp_path, "setup")
    assert (step, value.tensor.string_val[0]) == (4, b"**bold**")
    assert scalars(tmp_path, "python") == [(4, 3.0)]
    assert scalars(tmp_path, "numpy") == [(9, 0.5)]
    assert histogram(values(tmp_path, "not a number")[0][1])[1].sum() == 1


def test_mistakes_are_named(writer):
    with writer.as_default(step=0):
        with pytest.raises(
            rx.summary.SummaryError, match=r"scalar 'v' got shape \(2,\); expected o"
        ):
            rx.summary.scalar("v", np.zeros(2))
        with pytest.raises(
            rx.summary.SummaryError, match=r"image 'v' got shape \(2, 2\); expected"
        ):
            rx.summary.image("v", np.zeros((2, 2)))
        with pytest.raises(TraceError, match="text 'v' was called inside a function that is being"):
            rx.function(lambda: rx.summary.text("v", "x"))()

        @rx.function
        def scanned(x):
            return jax.lax.scan(lambda c, e: (rx.summary.scalar("v", e), (c, e))[1], 0.0, x)

        with pytest.raises(TraceError, match=r"scalar 'v' was reached inside jax.jit, lax.scan"):
            scanned(np.zeros(3))
        strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

        @rx.function
        def looped(x):
            def body(carry, each):
                strategy.run(lambda: rx.summary.scalar("v", 1.0))
                return carry, each

            return jax.lax.scan(body, 0.0, x)

        with pytest.raises(TraceError, match="recorded in a run inside a loop or a branch"):
            looped(np.zeros(3))
    with pytest.raises(ContextError, match="create_file_writer was called inside a function"):
        rx.function(lambda: rx.summary.create_file_writer("x"))()


def test_a_summary_without_a_step_is_named_once_and_left_out(writer, tmp_path):
    with writer.as_default():
        with pytest.warns(
            ReplicaxWarning, match="the scalar 'lost' has no step and is not written"
        ):
            rx.summary.scalar("lost", 1.0)
        rx.summary.scalar("kept", 1.0, step=0)
    assert scalars(tmp_path, "lost") == []
    assert scalars(tmp_path, "kept") == [(0, 1.0)]


def test_a_folder_that_cannot_be_written_is_an_error_of_the_flush(tmp_path):
    (tmp_path / "file").write_text("")
    writer = rx.summary.create_file_writer(tmp_path / "file")
    writer.set_as_default(step=0)
    try:
        rx.summary.scalar("x", 1.0)
        with pytest.raises(OSError, match="file"):
            writer.flush()
    finally:
        rx.summary.create_noop_writer().set_as_default()
        writer.close()
    with pytest.raises(ContextError, match=r"is closed. Create another one"):
        writer.set_as_default()


def test_what_was_recorded_is_in_the_file_at_the_end_of_the_program(tmp_path):
    from tests.backend.fresh_process import run_fresh

    run_fresh(
        f"""
        import replicax as rx

        rx.summary.create_file_writer({str(tmp_path)!r}).set_as_default(step=1)
        rx.summary.scalar("last", 2.0)
        """
    )
    assert scalars(tmp_path, "last") == [(1, 2.0)]
