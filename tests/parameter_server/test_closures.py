"""Closures: what they return, what they do to variables, and what is refused."""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import ContextError, TraceError, VariableError


def test_every_closure_is_applied_once_in_whatever_order(strategy, coordinator):
    with strategy.scope():
        total = rx.Variable(0.0)
    values = [
        coordinator.schedule(lambda x: total.assign_add(x).value, (float(i),)) for i in range(20)
    ]
    coordinator.join()
    assert float(total) == sum(range(20))
    assert coordinator.done()
    assert all(0 <= value.get() <= 190 for value in values)


def test_a_closure_is_traced_once_for_one_kind_of_arguments(strategy, coordinator):
    traces = []

    @rx.function
    def double(x):
        traces.append(x.shape)
        return 2 * x

    values = [coordinator.schedule(double, args=(np.ones(n, np.float32),)) for n in (2, 2, 3, 2)]
    assert [value.fetch().sum() for value in values] == [4, 4, 6, 4]
    assert traces == [(2,), (3,)]


def test_results_have_the_nest_that_the_closure_returned(coordinator):
    def closure(x, *, name):
        return {"sum": x.sum(), "name": name, "pair": (x, None)}

    value = coordinator.schedule(closure, args=(np.arange(3.0),), kwargs={"name": "n"})
    got = value.get()
    assert isinstance(got["sum"], jax.Array)
    assert got["name"] == "n"
    assert got["pair"][1] is None
    fetched = coordinator.fetch({"deep": [value, 1]})
    assert type(fetched["deep"][0]["sum"]) is np.ndarray
    np.testing.assert_array_equal(fetched["deep"][0]["pair"][0], [0, 1, 2])


def test_a_plain_function_and_a_function_in_a_function_serve_as_well(strategy, coordinator):
    with strategy.scope():
        v = rx.Variable(3.0)
    inner = rx.function(lambda x: x * v)
    assert coordinator.schedule(lambda: inner(2.0) + 1).fetch() == 7


def test_strategy_run_and_reduce_in_a_closure(strategy, coordinator):
    def replica_fn(x):
        context = rx.get_replica_context()
        assert context.num_replicas_in_sync == 1
        return context.all_reduce("SUM", x)

    @rx.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=0)

    assert coordinator.schedule(step, args=(np.arange(4.0),)).fetch() == 6


def test_what_a_closure_assigns_it_reads_again(strategy, coordinator):
    with strategy.scope():
        v = rx.Variable([1.0, 2.0])

    def closure():
        before = v.value
        v.assign_add([1.0, 1.0])
        between = v.value
        v.assign(between * 10)
        v.assign_sub([1.0, 1.0])
        return before, between, v.value

    before, between, after = coordinator.schedule(closure).fetch()
    coordinator.join()
    assert before.tolist() == [1, 2]
    assert between.tolist() == [2, 3]
    assert after.tolist() == [19, 29]
    assert v.numpy().tolist() == [19, 29]


def test_variables_are_read_and_assigned_outside_of_closures(strategy):
    with strategy.scope():
        v, count = rx.Variable([1.0, 2.0]), rx.Variable(0)
    v.assign_sub([1.0, 0.0])
    v.assign_add([0.0, 1.0])
    assert v.numpy().tolist() == [0, 3]
    assert (v * 2).tolist() == [0, 6]
    assert count.assign(7).numpy() == 7
    assert count.dtype == np.int32


def test_variables_go_round_the_servers_by_size(strategy):
    with strategy.scope():
        large = rx.Variable(np.zeros(10, np.float32))
        small = [rx.Variable(np.zeros(4, np.float32)) for _ in range(3)]
    assert [*large.devices()] == ["/job:ps/task:0"]
    assert {d for v in small[:2] for d in v.devices()} == {"/job:ps/task:1"}
    assert strategy.extended.parameter_devices == ("/job:ps/task:0", "/job:ps/task:1")
    assert strategy.extended.worker_devices == ("/job:worker/task:0", "/job:worker/task:1")


def test_workers_run_at_the_same_time(strategy, coordinator, tmp_path):
    def dataset_fn():
        own = tmp_path / str(rx.coordinator.experimental_get_current_worker_index())

        def elements():
            yield np.float32(0)
            own.touch()
            end = time.monotonic() + 60
            while len(list(tmp_path.iterdir())) < 2:  # until the other worker asks for one, too
                assert time.monotonic() < end
                time.sleep(0.01)
            yield np.float32(1)

        return elements()

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    for _ in range(2):
        coordinator.schedule(lambda it: (next(it), next(it)), args=(iterator,))
    coordinator.join()
    assert coordinator.stats().by_worker == (1, 1)


def test_metrics_count_every_closure(strategy, coordinator):
    with strategy.scope():
        mean = rx.metrics.Mean()
    for x in (1.0, 2.0, 6.0):
        coordinator.schedule(lambda x: strategy.run(mean.update_state, args=(x,)), args=(x,))
    coordinator.join()
    assert float(mean.result()) == 3
    mean.reset_state()
    assert float(mean.result()) == 0


def test_captured_numbers_that_change_do_not_trace_for_each_value(coordinator):
    traces = itertools.count()

    def scaled_by(scale):
        def closure(x):
            next(traces)
            return x * scale

        return closure

    for i in range(5):
        assert coordinator.schedule(scaled_by(0.5 * i), args=(2.0,)).fetch() == i
    assert next(traces) <= 3


def test_a_value_of_each_worker(strategy, coordinator):
    each = rx.coordinator.PerWorkerValues([{"x": 10, "y": 1.0}, {"x": 20, "y": 1.0}])

    def closure(each):
        return each["x"] + each["y"], rx.coordinator.experimental_get_current_worker_index()

    for _ in range(6):
        total, worker = coordinator.schedule(closure, args=(each,)).fetch()
        assert total == 11 + 10 * worker


def test_the_coordinator_of_a_strategy_is_one_object(strategy, coordinator):
    assert rx.coordinator.ClusterCoordinator(strategy) is coordinator
    with pytest.raises(ValueError, match="has a coordinator with max_staleness=None"):
        rx.coordinator.ClusterCoordinator(strategy, max_staleness=3)


# -- what is refused ---------------------------------------------------------------------------


def test_callbacks_are_refused_by_name(coordinator):
    with pytest.raises(TraceError, match="calls debug_callback, and runs on a worker"):
        coordinator.schedule(lambda x: jax.debug.callback(print, x), args=(1.0,))


def test_a_gradient_by_rows_is_no_result(strategy, coordinator):
    with strategy.scope():
        table = rx.Variable(np.ones((3, 2), np.float32))

    def gradient(rows):
        return rx.grad(lambda: table.gather(rows).sum(), table)

    rows = np.array([1, 1], np.int32)
    with pytest.raises(TraceError, match=r"gradient' returns the RowGradient .*\(3, 2\).*dense"):
        coordinator.schedule(gradient, args=(rows,))
    value = coordinator.schedule(lambda rows: gradient(rows).dense(), args=(rows,))
    np.testing.assert_array_equal(value.fetch(), [[0, 0], [2, 2], [0, 0]])


def test_a_variable_that_is_on_no_server_is_refused_by_name(coordinator):
    local = rx.Variable(1.0, name="local")
    with pytest.raises(VariableError, match="uses variable 'local', which is on no parameter"):
        coordinator.schedule(lambda: local.value)


def test_an_update_in_a_loop_is_refused(strategy, coordinator):
    with strategy.scope():
        v = rx.Variable(0.0, name="v")

    def closure():
        jax.lax.fori_loop(0, 3, lambda i, x: (v.assign_add(1.0), x)[1], 0.0)

    with pytest.raises(TraceError, match="assign_add of variable 'v' was reached inside"):
        coordinator.schedule(closure)


def test_run_outside_of_a_closure_says_where_it_belongs(strategy):
    with pytest.raises(ContextError, match=r"ClusterCoordinator\(strategy\).schedule"):
        strategy.run(lambda: 1)


def test_a_function_that_is_not_scheduled_says_so(strategy):
    with strategy.scope():
        v = rx.Variable(0.0, name="v")
    with pytest.raises(ContextError, match=r"a read of variable 'v' under .* runs on workers"):
        rx.function(lambda: v * 2)()


def test_arguments_that_cannot_be(coordinator, strategy):
    value = coordinator.schedule(lambda: 1)
    with pytest.raises(TypeError, match="is a RemoteValue"):
        coordinator.schedule(lambda x: x, args=(value,))
    with pytest.raises(TypeError, match="needs a callable as fn; got 3"):
        coordinator.schedule(3)
    with pytest.raises(TypeError, match="needs a ParameterServerStrategy; got"):
        rx.coordinator.ClusterCoordinator(rx.get_strategy())
    with pytest.raises(ContextError, match="where there is no worker"):
        rx.coordinator.experimental_get_current_worker_index()


def test_a_cluster_without_servers_is_refused():
    resolver = rx.cluster_resolver.SimpleClusterResolver({"worker": ["a:1"]})
    with pytest.raises(ValueError, match="has no ps"):
        rx.ParameterServerStrategy(resolver)
    with pytest.raises(ValueError, match=r"expected one of .'embedded'"):
        rx.ParameterServerStrategy(resolver, transport="pigeons")


def test_a_closure_that_fails_while_it_is_traced_raises_at_once(coordinator):
    with pytest.raises(KeyError, match="missing"):
        coordinator.schedule(lambda: {}["missing"])
    coordinator.join()
    assert coordinator.schedule(lambda: jnp.ones(())).fetch() == 1
