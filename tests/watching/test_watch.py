"""What a watch finds in loops of every kind, and what it leaves as it was."""

import contextlib
import dataclasses
import json
import os
import pty
import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core import recording
from replicax.jax_internals.arrays import ConcreteArray
from tests.summary.event_files import scalars

NUM_ROWS, BATCH = 20, 4


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    before = dict(vars(ConcreteArray))
    yield
    assert recording.recorder is None
    assert dict(vars(ConcreteArray)) == before
    assert "replicax-watch" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def watched(strategy, tmp_path):
    """Opens a watch that writes its line to a file."""
    return lambda **options: rx.watch(strategy, file=tmp_path / "line.json", **options)


def dataset(strategy):
    return strategy.distribute_dataset(np.ones((NUM_ROWS, 2), np.float32), batch_size=BATCH)


def train_step(x):
    return x.sum()


def one_batch(strategy):
    return strategy.distribute_batch(np.ones((BATCH, 2), np.float32))


# -- loops -------------------------------------------------------------------------------------


def compiled(strategy):
    step = rx.function(train_step)
    return lambda batch: strategy.run(step, args=(batch,))


def cross_replica(strategy):
    return rx.function(
        lambda batch: strategy.reduce("SUM", strategy.run(train_step, args=(batch,)), axis=None)
    )


def eager(strategy):
    return lambda batch: strategy.run(train_step, args=(batch,))


def with_other_calls(strategy):
    """A step of two functions, one of which is compiled."""
    step, other = compiled(strategy), rx.function(lambda x: x + 1)
    return lambda batch: (step(batch), other(1.0))


STEPS = {
    "compiled": compiled,
    "cross-replica": cross_replica,
    "eager": eager,
    "two functions": with_other_calls,
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_batches_of_a_dataset_are_steps_and_their_examples_are_counted(make, strategy, watched):
    step = make(strategy)
    with watched() as watch:
        for _ in range(2):
            for batch in dataset(strategy):
                step(batch)
    report = watch.report()
    assert (report.steps, report.examples) == (2 * NUM_ROWS // BATCH, 2 * NUM_ROWS)
    assert sum(report.shares.values()) == pytest.approx(1)
    assert min(report.shares.values()) >= 0
    assert report.steps_per_second > 0
    active = report.seconds - report.compiling_seconds
    assert report.steps_per_second == pytest.approx(report.steps / active)
    assert report.examples_per_second == pytest.approx(report.examples / active)


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_without_a_dataset_calls_of_the_function_that_is_called_most_are_steps(
    make, strategy, watched
):
    step, batch = make(strategy), one_batch(strategy)
    rarely = rx.function(lambda x: x * 2)
    with watched() as watch:
        for number in range(6):
            step(batch)
            if number % 3 == 0:
                rarely(1.0)
    report = watch.report()
    assert (report.steps, report.examples, report.examples_per_second) == (6, None, None)


def test_the_size_of_a_batch_may_be_said(strategy, watched):
    step, batch = compiled(strategy), one_batch(strategy)
    with watched(examples_per_step=BATCH) as watch:
        for _ in range(3):
            step(batch)
    assert watch.report().examples == 3 * BATCH


def test_one_replica_has_bare_batches_which_are_counted_too(tmp_path):
    strategy = rx.OneDeviceStrategy("CPU:0")
    rows = {"x": np.ones((5, 2), np.float32), "y": np.ones(5, np.float32)}
    with rx.watch(strategy, file=tmp_path / "line.json") as watch:
        for batch in strategy.distribute_dataset(rows, batch_size=2):
            strategy.run(rx.function(lambda batch: batch["x"].sum()), args=(batch,))
    assert (watch.report().steps, watch.report().examples) == (3, 5)


@pytest.mark.parametrize(
    ("elements", "num_examples"),
    [
        ([np.ones((3, 2)), np.ones((2, 2))], 5),
        ([{"b": np.ones((3, 2)), "a": np.ones(3)}], 3),
        ([(np.ones((3, 2)), [np.ones(3)])], 3),
        ([np.array(["a", "b"])], 2),
    ],
    ids=["arrays", "dict", "nest", "strings"],
)
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_examples_of_any_nest_are_counted(elements, num_examples, num_replicas, tmp_path):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    with rx.watch(strategy, file=tmp_path / "line.json") as watch:
        for _ in strategy.distribute_dataset(elements):
            pass
    assert (watch.report().steps, watch.report().examples) == (len(elements), num_examples)


def test_uneven_batches_count_every_example_once(strategy, watched):
    step = compiled(strategy)
    uneven = strategy.distribute_dataset(np.ones((7, 2), np.float32), batch_size=4)
    with watched() as watch:
        for batch in uneven:
            step(batch)
    assert (watch.report().steps, watch.report().examples) == (2, 7)


def test_a_function_that_loops_over_a_dataset_makes_a_step_of_each_batch(strategy, watched):
    @rx.function
    def epoch(batches):
        for batch in batches:
            strategy.run(train_step, args=(batch,))

    with watched() as watch:
        epoch(dataset(strategy))
    assert watch.report().steps == NUM_ROWS // BATCH


@pytest.mark.filterwarnings("ignore:extended.experimental_run_steps_on_iterator is deprecated")
@pytest.mark.parametrize("is_dataset", [True, False], ids=["dataset", "iterator"])
def test_many_steps_in_one_launch_count_as_that_many(is_dataset, strategy, watched):
    batches = dataset(strategy) if is_dataset else [one_batch(strategy)] * 5

    def step(context, batch):
        context.set_last_step_output("total", strategy.run(train_step, args=(batch,)), "SUM")

    with watched() as watch:
        strategy.extended.experimental_run_steps_on_iterator(step, iter(batches), iterations=5)
    assert watch.report().steps == 5
    assert watch.report().examples == (NUM_ROWS if is_dataset else None)


def test_a_loop_without_steps(strategy, watched):
    with watched() as watch:
        pass
    report = watch.report()
    assert (report.steps, report.steps_per_second, report.examples) == (0, 0.0, None)
    assert report.shares["loop"] == pytest.approx(1)
    assert "0 steps in" in str(report)


def test_other_threads_are_not_the_loop(strategy, watched):
    step, batch = compiled(strategy), one_batch(strategy)

    def others():
        for _ in range(4):
            step(batch)
            for one in dataset(strategy):
                jax.block_until_ready(strategy.experimental_local_results(one))

    with watched() as watch:
        thread = threading.Thread(target=others)
        thread.start()
        thread.join()
        step(batch)
    assert (watch.report().steps, watch.report().examples) == (1, None)


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_fit_of_keras_is_watched(steps_per_execution, strategy, watched):
    import keras

    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    x = np.ones((NUM_ROWS, 2), np.float32)
    with watched() as watch:
        model.fit(x, x.sum(1), batch_size=BATCH, epochs=3, verbose=0)
    report = watch.report()
    assert (report.steps, report.examples) == (3 * NUM_ROWS // BATCH, 3 * NUM_ROWS)
    assert report.shares["input"] > 0
    assert report.compiling_seconds > 0


@pytest.mark.slow
def test_parameter_servers_make_a_step_of_each_closure_that_has_run(tmp_path):
    cluster = rx.cluster_resolver.SimpleClusterResolver({"ps": ["a:1"], "worker": ["b:1", "b:2"]})
    strategy = rx.ParameterServerStrategy(cluster)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    coordinator.schedule(lambda: None)
    coordinator.join()

    def closure():
        return jnp.ones(2).sum()

    with rx.watch(strategy, file=tmp_path / "line.json") as watch:
        for _ in range(8):
            coordinator.schedule(closure)
        coordinator.join()
    report = watch.report()
    assert report.steps == 8
    assert report.shares["workers"] > 0


# -- where the time goes -----------------------------------------------------------------------


def test_a_slow_source_is_waiting_for_input(strategy, watched):
    def slow():
        for _ in range(8):
            time.sleep(0.02)
            yield np.ones((BATCH, 2), np.float32)

    step = compiled(strategy)
    step(one_batch(strategy))
    with watched() as watch:
        for batch in strategy.distribute_dataset(slow):
            step(batch)
    assert watch.report().shares["input"] > 0.5


def test_what_the_loop_does_itself_is_the_loop(strategy, watched):
    step, batch = compiled(strategy), one_batch(strategy)
    step(batch)
    with watched() as watch:
        for _ in range(8):
            step(batch)
            time.sleep(0.02)
    assert watch.report().shares["loop"] > 0.5


@pytest.mark.parametrize("reads", [True, False], ids=["each result is read", "none is"])
def test_large_steps_are_waiting_for_devices(reads, strategy, watched):
    @rx.function
    def step(x):
        return jax.lax.fori_loop(0, 600, lambda _, y: jnp.tanh(y @ y), jnp.ones((60, 60)))[0, 0]

    batch = one_batch(strategy)
    for _ in range(3):  # until the shortcut has been found
        strategy.run(step, args=(batch,))
    with watched() as watch:
        for _ in range(12):
            result = strategy.run(step, args=(batch,))
            if reads:
                float(strategy.experimental_local_results(result)[0])
        jax.block_until_ready(strategy.experimental_local_results(result))
    assert watch.report().shares["devices"] > 0.5


def test_compiling_is_no_part_of_the_shares(strategy, watched):
    step, batch = compiled(strategy), one_batch(strategy)
    with watched() as watch:
        step(batch)
    report = watch.report()
    assert report.compiling_seconds > 0.5 * report.seconds
    assert report.programs == {"train_step": 1}
    assert sum(report.shares.values()) == pytest.approx(1)


def test_retraces_are_named_and_the_first_trace_is_none(strategy, watched):
    step = rx.function(train_step)
    strategy.run(step, args=(one_batch(strategy),))
    with watched() as watch:
        strategy.run(step, args=(one_batch(strategy),))
        assert watch.report().programs == {}
        for size in (2, 6):
            strategy.run(step, args=(strategy.distribute_batch(np.ones(size, np.float32)),))
        rx.function(lambda: 1)()
    report = watch.report()
    assert report.programs == {"train_step": 2, "<lambda>": 1}
    assert report.retraces == {"train_step": 2}
    assert "again: train_step 2 times" in str(report)


def test_the_memory_of_cpu_devices_is_that_of_the_process(strategy, watched):
    with watched() as watch:
        report = watch.report()
    assert report.memory_of == "process"
    assert 10**7 < report.memory_bytes <= report.peak_memory_bytes


# -- what is shown ------------------------------------------------------------------------------


def test_a_report_can_be_had_at_any_time_and_does_not_change(strategy, watched):
    step, batch = compiled(strategy), one_batch(strategy)
    with watched() as watch:
        step(batch)
        early = watch.report()
        step(batch)
        from_thread = []
        thread = threading.Thread(target=lambda: from_thread.append(watch.report()))
        thread.start()
        thread.join()
    assert (early.steps, from_thread[0].steps, watch.report().steps) == (1, 2, 2)
    assert watch.report() is watch.report()
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'steps'"):
        early.steps = 3


def test_where_the_output_is_no_terminal_there_is_one_line_of_json(strategy, capsys):
    step, batch = compiled(strategy), one_batch(strategy)
    with rx.watch(strategy, refresh_seconds=0.01) as watch:
        step(batch)
        time.sleep(0.1)
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)["watch"]
    assert found["steps"] == 1
    assert found["ended_by"] is None
    fields = {field.name for field in dataclasses.fields(rx.WatchReport)}
    assert set(found) == fields | {"slow_workers"}
    assert found["shares"] == {n: round(s, 6) for n, s in watch.report().shares.items()}


def test_a_file_gets_the_line_after_those_that_it_has(strategy, tmp_path, capsys):
    for _ in range(2):
        with rx.watch(strategy, file=tmp_path / "lines"):
            pass
    assert len((tmp_path / "lines").read_text().splitlines()) == 2
    assert capsys.readouterr().out == ""


def on_terminal(action):
    """What a terminal gets from `action`, whose standard output it is."""
    reading, writing = pty.openpty()
    received = []

    def read():
        with contextlib.suppress(OSError):
            while part := os.read(reading, 1 << 16):
                received.append(part)

    thread = threading.Thread(target=read)
    thread.start()
    with open(writing, "w") as screen, contextlib.redirect_stdout(screen):
        action()
    thread.join()
    os.close(reading)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(received).decode())


def test_a_terminal_shows_the_figures_while_the_loop_runs(strategy, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    step = compiled(strategy)

    def loop():
        with rx.watch(strategy, refresh_seconds=0.05):
            for batch in dataset(strategy):
                step(batch)
            print("from the loop")
            time.sleep(0.3)

    shown = on_terminal(loop)
    assert "MirroredStrategy: 2 replicas on CPU:0, CPU:1" in shown
    assert shown.count("steps/s") > 2
    for name in ("examples/s", "input", "dispatch", "devices", "workers", "loop", "memory"):
        assert f"\n{name} " in shown.replace("\r", ""), name
    assert "programs  1 traced in" in shown
    assert "from the loop" in shown
    assert '"watch"' not in shown


def test_the_view_can_be_left_out(strategy):
    def loop():
        with rx.watch(strategy, live=False):
            pass

    assert on_terminal(loop).startswith('{"watch": ')


def test_tensorboard_gets_the_figures(strategy, watched, tmp_path):
    step = compiled(strategy)
    writer = rx.summary.create_file_writer(tmp_path / "events")
    with watched(writer=writer, refresh_seconds=0.05):
        for batch in dataset(strategy):
            step(batch)
        time.sleep(0.2)
    writer.close()
    rates = scalars(tmp_path / "events", "watch/steps_per_second")
    assert len(rates) >= 2
    assert rates[-1][0] == NUM_ROWS // BATCH
    for name in ("examples_per_second", "share_of_devices", "memory_bytes", "retraces", "slowdown"):
        assert scalars(tmp_path / "events", f"watch/{name}"), name


def test_traces_of_the_profiler_have_the_names_of_steps_and_collectives(
    strategy, watched, tmp_path
):
    @rx.function
    def named_step(x):
        return rx.get_replica_context().all_reduce("SUM", x.sum())

    batch = one_batch(strategy)
    strategy.run(named_step, args=(batch,))
    with jax.profiler.trace(str(tmp_path / "trace")), watched():
        for _ in range(3):
            result = strategy.run(named_step, args=(batch,))
        jax.block_until_ready(result.read_value())
    (file,) = (tmp_path / "trace").rglob("*.xplane.pb")
    trace = file.read_bytes()
    name = named_step.__qualname__.encode()
    assert name in trace  # the annotation of a step
    assert b"step_num" in trace
    assert b"jit_named_step" in trace  # the program
    assert b"rx.all_reduce.SUM" in trace


# -- what goes wrong -----------------------------------------------------------------------------


def test_an_exception_ends_the_watch_and_goes_on_its_way(strategy, watched, tmp_path):
    watch = watched()
    with pytest.raises(ZeroDivisionError, match="division"), watch:
        1 / 0  # noqa: B018
    assert watch.report().ended_by == "ZeroDivisionError"
    assert "ended by   ZeroDivisionError" in str(watch.report())
    assert json.loads((tmp_path / "line.json").read_text())["watch"]["ended_by"]


def test_an_exception_in_a_step_leaves_a_watch_that_goes_on(strategy, watched):
    @rx.function
    def fails(x):
        raise ValueError("in the step")

    step, batch = compiled(strategy), one_batch(strategy)
    with watched() as watch:
        with pytest.raises(ValueError, match="in the step"):
            strategy.run(fails, args=(batch,))
        for _ in range(3):
            step(batch)
    assert watch.report().steps == 3


def test_a_file_that_cannot_be_written_is_an_error(strategy, tmp_path):
    with (
        pytest.raises(FileNotFoundError, match="No such file or directory"),
        rx.watch(strategy, file=tmp_path / "none" / "line"),
    ):
        pass


def test_a_file_that_cannot_be_written_does_not_hide_the_error_of_the_loop(strategy, tmp_path):
    with (
        pytest.raises(ZeroDivisionError, match="division"),
        rx.watch(strategy, file=tmp_path / "none" / "line"),
    ):
        1 / 0  # noqa: B018


def test_a_watch_in_a_watch_is_refused_and_the_outer_one_goes_on(strategy, watched):
    step, batch = compiled(strategy), one_batch(strategy)
    with watched() as watch:
        with (
            pytest.raises(RuntimeError, match="a watch is open already, and a process can watch"),
            rx.watch(strategy),
        ):
            pass
        step(batch)
    assert watch.report().steps == 1


def test_a_watch_is_opened_once(watched):
    watch = watched()
    with watch:
        pass
    with pytest.raises(RuntimeError, match="this watch has been opened before"), watch:
        pass


def test_a_watch_that_was_not_opened_has_no_report(watched):
    with pytest.raises(RuntimeError, match="the watch has not been opened, so it has no report"):
        watched().report()


def test_a_watch_is_opened_around_the_loop_and_not_in_a_step(strategy):
    def step():
        with rx.watch(strategy):
            pass

    with pytest.raises(RuntimeError, match=r"rx\.watch was called inside .*in replica context"):
        strategy.run(step)
    with pytest.raises(RuntimeError, match=r"rx\.watch was opened inside a function that is being"):
        rx.function(step)()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"writer": "folder"}, TypeError, "writer of watch is 'folder'; expected what"),
        ({"examples_per_step": 0}, ValueError, "examples_per_step is 0; expected 1 or more"),
        ({"refresh_seconds": 0}, ValueError, "refresh_seconds is 0; expected more than 0"),
    ],
)
def test_wrong_options_are_refused(options, error, text, strategy):
    with pytest.raises(error, match=text):
        rx.watch(strategy, **options)


def test_something_else_than_a_strategy_is_refused():
    with pytest.raises(TypeError, match="watch needs a strategy; got 'mirrored'"):
        rx.watch("mirrored")
